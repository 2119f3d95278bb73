import numpy as np
import pytest

from rl4p.update.dpo import DPO

REFERENCE = [[-1.5, -2.0, 0.0], [-2.0, 0.0, 0.0]]
LOGPROBS = [[-1.0, -2.0, 9.0], [-3.5, 9.0, 9.0]]  # minus the reference: 0.5 and -1.5; h = 2
MASK = [[1, 1, 0], [1, 0, 0]]


@pytest.fixture
def pair(make_batch):
    return make_batch([[1] * 3, [-1] * 3], REFERENCE, mask=MASK, reference_logprobs=REFERENCE)


@pytest.mark.parametrize(
    ("options", "loss", "slopes"),
    [
        # sigmoid(0.2) = 0.5498340
        ({}, 0.5981389, (-0.0450166, 0.0450166)),
        ({"label_smoothing": 0.1}, 0.6181389, (-0.0350166, 0.0350166)),
        ({"kind": "ipo"}, 9.0, (-6.0, 6.0)),  # (2 - 5)^2
        # means of 0.25 and -1.5: h = 1.75, sigmoid(0.175) = 0.5436387
        ({"length_normalised": True}, 0.6094705, (-0.0228181, 0.0456361)),
        # means -1.5 and -3.5: 2 x 2 - 0.5, sigmoid(3.5) = 0.9706878
        ({"kind": "simpo", "beta": 2.0}, 0.0297504, (-0.0293122, 0.0586245)),
        # p = exp(-1.5) and exp(-3.5): odds 0.2872169 and 0.0311377, their ratio's log 2.2218197,
        # so 1.5 + 0.1 x 0.1029280; d log odds / d log p is 1 / (1 - p), sigmoid(-h) 0.0978081
        ({"kind": "orpo"}, 1.5102928, (-0.5062950, 0.0100854)),
    ],
)
def test_a_pair(pair, evaluate, options, loss, slopes):
    loss_BT, extras, slope_BT = evaluate(DPO(**options), LOGPROBS, pair, weighted=True)
    np.testing.assert_allclose(loss_BT.sum(), loss, rtol=1e-5)
    np.testing.assert_allclose(
        slope_BT, [[slopes[0], slopes[0], 0], [slopes[1], 0, 0]], rtol=1e-4, atol=1e-8
    )
    np.testing.assert_array_equal(extras["preference_accuracy"], MASK)


def test_a_pair_that_is_wrong(make_batch, evaluate):
    """The margin is -2: -log sigmoid(-0.2) = 0.7981389."""
    batch = make_batch([[-1] * 3, [1] * 3], REFERENCE, mask=MASK, reference_logprobs=REFERENCE)
    loss_BT, extras, _ = evaluate(DPO(), LOGPROBS, batch, weighted=True)
    np.testing.assert_allclose(loss_BT.sum(), 0.7981389, rtol=1e-6)
    assert not extras["preference_accuracy"].any()
    np.testing.assert_allclose(extras["preference_margin"], np.multiply(MASK, -2), rtol=1e-6)


@pytest.mark.parametrize(
    "advantages", [([1] * 3, [1] * 3), ([-1] * 3, [-1] * 3), ([0] * 3, [-1] * 3)]
)
def test_a_group_without_both_kinds_has_no_loss(make_batch, evaluate, advantages):
    batch = make_batch(advantages, REFERENCE, mask=MASK, reference_logprobs=REFERENCE)
    loss_BT, _, slope_BT = evaluate(DPO(), LOGPROBS, batch)
    np.testing.assert_array_equal(loss_BT, 0)
    np.testing.assert_array_equal(slope_BT, 0)


def test_partners_are_found_by_their_group(make_batch, evaluate):
    """With one token per row and no reference the scores are 1, 2, 3, 4, 5; h is 1 - 4 and 5 - 2.

    The sixth row has no tokens and the third is alone in its group: neither is in a pair.
    """
    batch = make_batch(
        [[1], [-1], [-1], [-1], [1], [1]],
        [[0]] * 6,
        mask=[[1]] * 5 + [[0]],
        groups=[5, 0, 3, 5, 0, 5],
        reference_logprobs=[[0]] * 6,
    )
    _, extras, slope_BT = evaluate(DPO(beta=1.0), [[1], [2], [3], [4], [5], [np.nan]], batch)
    np.testing.assert_allclose(extras["preference_margin"][:, 0], [-3, 3, 0, -3, 3, 0])
    # both rows of a pair have its loss: twice sigmoid(3) = 0.9525741 and sigmoid(-3) = 0.0474259
    expected = [-1.9051483, 0.0948517, 0, 1.9051483, -0.0948517, 0]
    np.testing.assert_allclose(slope_BT[:, 0], expected, rtol=1e-5)


def test_a_larger_group_is_the_mean_of_its_pairs(make_batch, evaluate):
    """The score 1 against 0 and -1: log(1 + e^-1) = 0.3132617, log(1 + e^-2) = 0.1269280."""
    batch = make_batch([[1], [-1], [-1]], [[0]] * 3, reference_logprobs=[[0]] * 3)
    loss_BT, _, _ = evaluate(DPO(beta=1.0), [[1], [0], [-1]], batch, weighted=True)
    np.testing.assert_allclose(loss_BT.sum(), (0.3132617 + 0.1269280) / 2, rtol=1e-6)


def test_a_reference_is_asked_for_but_by_simpo():
    assert DPO().needs == {"reference_logprobs"}
    assert DPO(kind="simpo").needs == DPO(kind="orpo").needs == set()
    assert DPO.whole_groups


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "ipo", "label_smoothing": 0.1},
        {"kind": "orpo", "label_smoothing": 0.1},
        {"kind": "simpo", "length_normalised": True},
        {"kind": "orpo", "length_normalised": True},
    ],
    ids=str,
)
def test_what_its_kind_has_no_use_for_is_refused(options):
    with pytest.raises(ValueError, match=f"kind={options['kind']}"):
        DPO(**options)


def test_a_margin_without_simpo_is_refused():
    with pytest.raises(ValueError, match="is the margin of kind=simpo"):
        DPO(gamma=0.7)


@pytest.mark.parametrize(
    ("options", "loss"),
    [
        ({"kind": "ipo", "length_normalised": True}, 10.5625),  # (1.75 - 5)^2
        # logit 3.5: 0.9 x 0.0297504 + 0.1 x 3.5297504
        ({"kind": "simpo", "beta": 2.0, "label_smoothing": 0.1}, 0.3797504),
        ({"kind": "simpo", "beta": 2.0, "gamma": 1.5}, 0.0788890),  # log(1 + e^-2.5)
    ],
    ids=str,
)
def test_options_act_where_they_are_said_to(pair, evaluate, options, loss):
    loss_BT, _, _ = evaluate(DPO(**options), LOGPROBS, pair, weighted=True)
    np.testing.assert_allclose(loss_BT.sum(), loss, rtol=1e-5)


def test_metrics_of_a_larger_group_are_means_over_a_rows_pairs(make_batch, evaluate):
    """The score 1 against 0 and 3 has the margins 1 and -2. A margin of 0 is not correct."""
    batch = make_batch([[1], [-1], [-1]], [[0]] * 3, reference_logprobs=[[0]] * 3)
    _, extras, _ = evaluate(DPO(), [[1], [0], [3]], batch)
    np.testing.assert_allclose(extras["preference_margin"], [[-0.5], [1], [-2]])
    np.testing.assert_allclose(extras["preference_accuracy"], [[0.5], [1], [0]])
    _, extras, _ = evaluate(DPO(), [[1], [1], [1]], batch)
    np.testing.assert_array_equal(extras["preference_accuracy"], 0)
