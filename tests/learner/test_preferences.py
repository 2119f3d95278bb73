import numpy as np
import pytest

from rl4p.learner.preferences import GroupPairs


@pytest.mark.slow
def test_good_rows_are_beside_bad_rows_of_their_group(make_batch):
    """Group 0 has one good row and two bad ones; the fourth row is alone, the fifth has A = 0."""
    advantages = np.array([[1.0], [-2.0], [-1.0], [1.0], [0.0]])
    batch = make_batch(advantages, np.zeros((5, 1)), groups=[0, 0, 0, 1, 0])
    pairs = GroupPairs.of(batch)
    expected = np.zeros((5, 5))
    expected[0, 1:3], expected[1:3, 0] = 1, -1
    np.testing.assert_array_equal(pairs.sign_BB, expected)
    score_B1 = np.float32([[3], [1], [5], [7], [9]])
    margin_BB = pairs.margins(score_B1)
    np.testing.assert_array_equal(margin_BB, expected * (score_B1 - score_B1.T))
    np.testing.assert_array_equal(pairs.of_chosen(score_B1)[[0, 1, 2], [1, 0, 0]], 3)
    mean_BT = pairs.mean(margin_BB, np.zeros((5, 2)))
    np.testing.assert_array_equal(mean_BT, np.repeat([[0], [2], [-2], [0], [0]], 2, axis=1))
    accuracy = pairs.metrics(margin_BB, np.zeros((5, 1)))["preference_accuracy"]
    np.testing.assert_array_equal(accuracy[:, 0], [0.5, 1, 0, 0, 0])
