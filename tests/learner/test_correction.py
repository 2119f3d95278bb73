"""Tests of all corrections, and of each."""

from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from rl4p.learner.correction import (
    NONE,
    OffPolicyMask,
    Product,
    SequenceMask,
    SequenceTruncate,
    TokenMask,
    TokenTruncate,
    correction_weights,
)

CONF = Path(__file__).resolve().parents[2] / "conf" / "correction"
PARTS = {
    "weight": TokenTruncate(cap=1.5),
    "sequence": SequenceMask(low=0.9, high=1.2),
    "bad": OffPolicyMask(threshold=0.01),
}
CORRECTIONS = {
    path.stem: instantiate(OmegaConf.load(path))
    for path in sorted(CONF.glob("*.yaml"))
    if path.stem != "product"
}
EVERY = CORRECTIONS | {"product": Product(parts=PARTS)}
MASK = jnp.asarray([[1, 1, 0], [1, 1, 1], [0, 0, 0]], bool)
each = pytest.mark.parametrize("name", EVERY)


@pytest.fixture
def weigh(make_batch):
    """Returns a function for the weights of bad tokens that a policy of probability 1 drew.

    The current policy is the proximal one.
    """

    def weigh(correction, log_w_BT, mask_BT=MASK, advantages=-1.0):
        advantages = np.broadcast_to(advantages, np.shape(mask_BT))
        batch = make_batch(advantages, 0.0, mask=mask_BT)
        return correction_weights(correction, log_w_BT, log_w_BT, batch)

    return weigh


@pytest.mark.parametrize("name", CORRECTIONS)
def test_the_yaml_has_the_defaults_of_the_class(name):
    assert CORRECTIONS[name] == type(CORRECTIONS[name])()


@each
def test_on_policy_samples_weigh_one(weigh, name):
    weights = weigh(EVERY[name], jnp.zeros((3, 3)), MASK)
    np.testing.assert_array_equal(weights, MASK)
    assert weights.dtype == jnp.float32


@each
@pytest.mark.parametrize("log_w", [1e4, -1e4, -np.inf, np.inf])
def test_extremes_are_finite_and_what_is_outside_the_mask_is_never_read(weigh, name, log_w):
    weights = weigh(EVERY[name], jnp.where(MASK, log_w, np.nan), MASK)
    assert np.isfinite(weights).all()
    np.testing.assert_array_equal(weights[~MASK], 0)


@each
def test_no_gradient_flows(weigh, name):
    slope = jax.grad(lambda x: weigh(EVERY[name], x, MASK).sum())(jnp.full((3, 3), 0.004))
    np.testing.assert_array_equal(slope, 0)


@each
def test_rows_in_any_order_and_any_padding(weigh, name):
    log_w = np.random.default_rng(0).normal(0, 0.01, (3, 3)).astype(np.float32)
    log_w[0, 0] = 3.0
    plain = weigh(EVERY[name], jnp.asarray(log_w), MASK)
    order = np.asarray([2, 0, 1])
    padded = np.pad(log_w[order], ((0, 0), (2, 1)), constant_values=np.nan)
    mask = jnp.pad(MASK[order], ((0, 0), (2, 1)))
    other = weigh(EVERY[name], jnp.asarray(padded), mask)
    np.testing.assert_allclose(other[:, 2:5], plain[order], rtol=1e-6)


@pytest.mark.parametrize(
    ("correction", "largest", "smallest"),
    [
        (TokenTruncate(cap=1e9), np.exp(20), np.exp(-20)),
        (TokenMask(low=0.0, high=1e9), np.exp(20), np.exp(-20)),
        (SequenceMask(low=0.0, high=1e9, weighted=True), np.exp(20), np.exp(-20)),
        (SequenceTruncate(cap=1e9), np.exp(20), np.exp(-20)),
    ],
    ids=lambda x: type(x).__name__,
)
def test_log_weights_are_bounded_at_twenty_and_not_before(correction, largest, smallest):
    """A log weight of 19 is inside the bounds; 100 and -100 are not."""
    log_w = jnp.asarray([[19.0], [100.0], [-19.0], [-100.0]])
    weights = correction(log_w, jnp.ones((4, 1), bool))
    expected = [[np.exp(19)], [largest], [np.exp(-19)], [smallest]]
    np.testing.assert_allclose(weights, expected, rtol=1e-5)


@pytest.mark.parametrize("correction", [TokenMask(low=1.0, high=1.0), SequenceMask(low=1, high=1)])
def test_the_bounds_are_inside(correction):
    mask = jnp.ones((1, 2), bool)
    np.testing.assert_array_equal(correction(jnp.zeros((1, 2)), mask), 1)
    np.testing.assert_array_equal(correction(jnp.full((1, 2), 1e-3), mask), 0)
    np.testing.assert_array_equal(correction(jnp.full((1, 2), -1e-3), mask), 0)


def test_every_token_of_the_mask_weighs_one():
    log_w = jnp.asarray([[0.5, -1e4, np.nan]])
    weights = NONE()(log_w, jnp.asarray([[True, True, False]]))
    np.testing.assert_array_equal(weights, [[1, 1, 0]])
    assert weights.dtype == jnp.float32


def test_weights_are_cut_at_the_cap():
    log_w = jnp.log(jnp.asarray([[0.25, 1.0, 1.9, 2.1]]))
    weights = TokenTruncate(cap=2.0)(log_w, jnp.asarray([[True] * 4]))
    np.testing.assert_allclose(weights, [[0.25, 1, 1.9, 2]], rtol=1e-6)


def test_weights_outside_the_bounds_are_nothing():
    log_w = jnp.log(jnp.asarray([[0.49, 0.51, 1.0, 4.9, 5.1]]))
    weights = TokenMask()(log_w, jnp.asarray([[True] * 5]))
    np.testing.assert_allclose(weights, [[0, 0.51, 1, 4.9, 0]], rtol=1e-6)
    plain = TokenMask(weighted=False)(log_w, jnp.asarray([[True] * 5]))
    np.testing.assert_array_equal(plain, [[0, 1, 1, 1, 0]])
    both = TokenMask(low=0.0, high=1.0)(jnp.zeros((1, 1)), jnp.asarray([[True]]))
    np.testing.assert_array_equal(both, 1)  # weights equal to a bound are kept


def test_every_token_weighs_the_product_up_to_the_cap():
    """The products are 0.75, 3 (capped at 2), 0.7 (one token), and that of no token."""
    w = jnp.asarray([[1.5, 0.5], [1.5, 2.0], [0.7, 9.0], [9.0, 9.0]])
    mask = jnp.asarray([[1, 1], [1, 1], [1, 0], [0, 0]], bool)
    weights = SequenceTruncate(cap=2.0)(jnp.log(w), mask)
    np.testing.assert_allclose(weights, [[0.75] * 2, [2] * 2, [0.7, 0], [0, 0]], rtol=1e-6)


# Geometric means: 1 (of 2 and 1/2), 1.2 (of 1.44 and 1), 0.7 (one token), and no token.
W = jnp.asarray([[2.0, 0.5], [1.44, 1.0], [0.7, 9.0], [9.0, 9.0]])
KEPT = jnp.asarray([[1, 1], [1, 1], [1, 0], [0, 0]], bool)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [[1, 1], [0, 0], [0, 0], [0, 0]]),
        ({"low": 0.75}, [[1, 1], [0, 0], [0, 0], [0, 0]]),  # padding does not count in the mean
        ({"high": 1.21}, [[1, 1], [1, 1], [0, 0], [0, 0]]),
        ({"low": 0.69, "high": 1.01}, [[1, 1], [0, 0], [1, 0], [0, 0]]),
        ({"high": 1.21, "weighted": True}, [[2, 0.5], [1.44, 1], [0, 0], [0, 0]]),
    ],
)
def test_a_sequence_stays_or_goes_by_its_geometric_mean(options, expected):
    np.testing.assert_allclose(SequenceMask(**options)(jnp.log(W), KEPT), expected, rtol=1e-6)


def test_weights_of_tokens_have_no_gradient_either():
    """A token of a kept sequence is weighed by its own w, which is a constant."""
    correction = SequenceMask(low=0.5, high=2.0, weighted=True)
    slope = jax.grad(lambda x: correction(x, KEPT[:1]).sum())(jnp.log(W[:1]))
    np.testing.assert_array_equal(slope, 0)


@pytest.mark.slow
def test_bad_tokens_of_sequences_that_the_policy_has_left_are_dropped(make_batch):
    """The formula of DeepSeek-V3.2, token by token in float64."""
    random = np.random.default_rng(3)
    mask = np.arange(6) < np.asarray([6, 4, 1, 0, 5, 6, 3, 2])[:, None]
    advantages, behaviour = random.normal(0, 1, (8, 6)), random.uniform(-3, -0.1, (8, 6))
    logprobs = behaviour + random.normal(0, 0.2, (8, 1)) + random.normal(0, 0.3, (8, 6))
    version = np.where(random.random((8, 6)) < 0.3, -1, 4)
    expected = np.zeros((8, 6))
    for b, t in zip(*np.nonzero(mask), strict=True):
        drawn = [u for u in range(6) if mask[b, u] and version[b, u] >= 0]
        mean = sum(behaviour[b, u] - logprobs[b, u] for u in drawn) / max(len(drawn), 1)
        expected[b, t] = not (advantages[b, t] < 0 and mean > 0.05)

    def weights(order, left, right):
        def laid_out(x, fill):
            return np.pad(x[order], ((0, 0), (left, right)), constant_values=fill)

        batch = make_batch(
            laid_out(np.where(mask, advantages, np.nan), np.nan),
            0.0,
            mask=laid_out(mask, False),
            behaviour=laid_out(np.where(mask & (version >= 0), behaviour, np.nan), np.nan),
            version=laid_out(version, 4),
        )
        own = jnp.asarray(laid_out(np.where(mask, logprobs, np.nan), np.nan), jnp.float32)
        return correction_weights(OffPolicyMask(threshold=0.05), own * jnp.nan, own, batch)

    plain = weights(np.arange(8), 0, 0)
    np.testing.assert_array_equal(plain, expected)
    assert 0 < expected.sum() < mask.sum()
    order = random.permutation(8)
    other = weights(order, 2, 3)
    np.testing.assert_array_equal(other, np.pad(expected[order], ((0, 0), (2, 3))))


@pytest.mark.parametrize(
    ("advantage", "log_ratio", "kept"),
    [
        (-1.0, -0.5, True),  # as far as the threshold
        (-1.0, -0.5001, False),
        (-1.0, 3.0, True),  # the policy has come nearer
        (0.0, -3.0, True),
        (1.0, -3.0, True),
    ],
)
def test_only_bad_tokens_and_only_beyond_the_threshold_are_dropped(
    weigh, advantage, log_ratio, kept
):
    log_ratio_BT = jnp.asarray([[2 * log_ratio, 0.0]], jnp.float32)
    mask = jnp.ones((1, 2), bool)
    weights = weigh(OffPolicyMask(threshold=0.5), log_ratio_BT, mask, advantage)
    np.testing.assert_array_equal(weights, [[kept, kept]])


@pytest.mark.slow
def test_a_product_multiplies_the_weights_of_its_parts(weigh):
    log_w = jnp.asarray(np.random.default_rng(1).normal(0, 0.3, (40, 5)), jnp.float32)
    mask = jnp.asarray(np.arange(5) < np.arange(40)[:, None] % 6)
    advantages = np.where(np.arange(40) % 2, 1.0, -1.0)[:, None]
    of_parts = [weigh(part, log_w, mask, advantages) for part in PARTS.values()]
    expected = np.prod(of_parts, axis=0)
    np.testing.assert_allclose(weigh(EVERY["product"], log_w, mask, advantages), expected)
    for each in of_parts:  # each part decides about some tokens
        assert (np.asarray(each) != expected).any()
    assert (expected > 0).any()


def test_a_product_asks_for_what_its_parts_ask_for(make_batch):
    """A part with scores gets its own; the product is static, so it is compared and hashed."""

    @dataclass(frozen=True)
    class Scored:
        needs = frozenset({"entropy"})

        def __call__(self, log_ratio_BT, mask_BT, scores):
            assert scores.keys() == {"entropy"}
            return jnp.where(mask_BT, scores["entropy"], 0.0)

    product = Product(parts={"entropy": Scored(), "mask": TokenMask(weighted=False)})
    assert product.needs == {"entropy"}
    assert not product.weighs
    assert not product.reads_advantages
    assert EVERY["product"].weighs
    assert EVERY["product"].reads_advantages
    batch = make_batch([[1.0, 1.0]], 0.0, entropy=[[2.0, 3.0]])
    log_w = jnp.log(jnp.asarray([[1.0, 9.0]]))
    np.testing.assert_array_equal(correction_weights(product, log_w, log_w, batch), [[2, 0]])
    same = Product(parts=dict(PARTS))
    assert (same, hash(same)) == (EVERY["product"], hash(EVERY["product"]))
    assert same != Product(parts=PARTS | {"weight": TokenTruncate(cap=2.0)})


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({}, "product needs at least two corrections: "),
        ({"a": TokenTruncate()}, "product needs at least two corrections: "),
        ({"a": TokenTruncate(), "b": NONE()}, "parts.b gives every token the weight 1"),
        ({"a": TokenTruncate(), "b": TokenMask()}, "parts.a and parts.b both weigh with w"),
        (
            {"a": SequenceMask(weighted=True), "c": SequenceMask(), "b": SequenceTruncate()},
            "parts.a and parts.b both weigh with w",
        ),
    ],
)
def test_a_product_with_a_part_too_few_or_too_many_is_refused(parts, sentence):
    with pytest.raises(ValueError, match=sentence):
        Product(parts=parts)
