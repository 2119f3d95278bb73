import numpy as np

from rl4p.rollout.response_keys import response_keys, words


def test_a_key_depends_on_seed_prompt_and_sample_only():
    keys = response_keys(0, ["a", "b", "c"], 4)
    assert keys.shape[:2] == (3, 4)
    assert keys.dtype == np.uint32
    np.testing.assert_array_equal(response_keys(0, ["c", "a"], 2), keys[[2, 0], :2])
    later = response_keys(0, ["a", "b"], 2, first=[2, 1])
    np.testing.assert_array_equal(later, [keys[0, 2:4], keys[1, 1:3]])


def test_all_keys_differ():
    keys = [response_keys(seed, [str(n) for n in range(50)], 4) for seed in (0, 1)]
    keys = np.concatenate(keys).reshape(400, -1)
    assert len(np.unique(keys, axis=0)) == 400


def test_words_are_of_32_bits_and_stable():
    """They are part of saved results, so they may never change."""
    assert words("arithmetic/347+585") == (1733422823, 1694684471)
