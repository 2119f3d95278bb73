"""Tests the choice and the weights of experts against a loop in float64."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.model.router import Router, RouterLoad, balance_loss, balanced

E, C = 12, 4
ROUTERS = {
    "softmax": Router(),
    "corrected": Router(corrected=True, epsilon=1e-3),
    "sigmoid": Router(score="sigmoid", factor=2.5),
    "two_largest": Router(score="sigmoid", corrected=True, groups=4, chosen_groups=2, factor=2.5),
    "largest": Router(groups=3, chosen_groups=2, group_score="largest"),
}


@pytest.fixture(scope="module")
def scores():
    """Returns the scores of 3 x 20 tokens, and a correction that changes choices."""
    random = np.random.default_rng(0)
    scores_BTE = random.normal(size=(3, 20, E)).astype(np.float32)
    return scores_BTE, random.normal(scale=0.3, size=E).astype(np.float32)


def by_a_loop(router, scores_BTE, correction_E, normalized):
    """Returns a dictionary of the weights of the chosen experts for each token."""
    rows = []
    for x in np.float64(scores_BTE).reshape(-1, E):
        p = np.exp(x) / np.exp(x).sum() if router.score == "softmax" else 1 / (1 + np.exp(-x))
        rank = p + (correction_E if router.corrected else 0)
        size = E // router.groups
        best = 2 if router.group_score == "two_largest" else 1
        marks = [sorted(rank[g * size : (g + 1) * size])[-best:] for g in range(router.groups)]
        groups = np.argsort([-sum(mark) for mark in marks])[: router.chosen_groups]
        open_to = [e for e in range(E) if e // size in groups]
        chosen = sorted(open_to, key=lambda e: -rank[e])[:C]
        sum_ = sum(p[e] for e in chosen) + router.epsilon if normalized else 1
        rows.append({e: router.factor * p[e] / sum_ for e in chosen})
    return rows


def choose(router, scores_BTE, correction_E, normalized):
    correction_E = correction_E if router.corrected else None
    return router.choose(jnp.asarray(scores_BTE), correction_E, C, normalized=normalized)


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("name", ROUTERS)
def test_the_choice_and_the_weights_are_the_formula(scores, name, normalized):
    router = ROUTERS[name]
    weights, chosen = choose(router, *scores, normalized)
    expected = by_a_loop(router, *scores, normalized)
    rows = zip(weights.reshape(-1, C), chosen.reshape(-1, C), strict=True)
    for (own, numbers), row in zip(rows, expected, strict=True):
        assert set(numbers.tolist()) == set(row)
        np.testing.assert_allclose(own, [row[int(e)] for e in numbers], rtol=1e-5)


@pytest.mark.parametrize("name", ["corrected", "two_largest", "largest"])
def test_a_correction_and_groups_change_choices(scores, name):
    plain = choose(Router(score=ROUTERS[name].score), *scores, normalized=True)[1]
    changed = choose(ROUTERS[name], *scores, normalized=True)[1]
    differing = np.any(np.sort(plain) != np.sort(changed), axis=-1)
    assert differing.mean() > 0.2


def test_a_correction_has_no_gradient_and_the_scores_have_that_of_the_weights(scores):
    router = ROUTERS["two_largest"]
    factors_C = jnp.arange(1.0, C + 1)

    def value(scores_BTE, correction_E):
        weights, _ = router.choose(scores_BTE, correction_E, C, normalized=True)
        return jnp.sum(weights * jnp.broadcast_to(factors_C, weights.shape))

    of_scores, of_correction = jax.grad(value, argnums=(0, 1))(*scores)
    np.testing.assert_array_equal(of_correction, 0)
    step = 1e-2
    for at in [(0, 3, 2), (2, 19, 7), (1, 0, 11)]:
        near = [scores[0].copy() for _ in range(2)]
        for x, sign in zip(near, (1, -1), strict=True):
            x[at] += sign * step
        slope = (value(near[0], scores[1]) - value(near[1], scores[1])) / (2 * step)
        np.testing.assert_allclose(of_scores[at], slope, atol=5e-3)
    assert np.abs(of_scores).max() > 0.1


@pytest.mark.parametrize(
    ("changes", "chosen", "words"),
    [
        ({"groups": 5}, C, "5 groups of 12 experts"),
        ({"groups": 12}, C, "at least 2 experts each"),
        ({"groups": 4, "chosen_groups": 5}, C, "of which 5 are chosen"),
        ({"groups": 4, "chosen_groups": 1}, C, "1 groups of 3 experts have fewer than the 4"),
    ],
)
def test_impossible_groups_are_refused(changes, chosen, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(Router(), **changes).check(E, chosen)


@pytest.mark.parametrize("name", ROUTERS)
def test_the_balance_loss_is_the_formula_and_skips_padding(scores, name):
    """Two layers of the same tokens, of which some are padding."""
    router, (scores_BTE, correction_E) = ROUTERS[name], scores
    real_BT = np.arange(20) < np.array([[20], [7], [0]])
    layers, counts, sums = [], np.zeros(E), np.zeros(E)
    for x in (scores_BTE, scores_BTE[..., ::-1] * 2):
        _, chosen = choose(router, x, correction_E, normalized=True)
        layers.append((chosen, router.shares(jnp.asarray(x))))
        for own, row in zip(np.float64(x)[real_BT], chosen[real_BT], strict=True):
            p = np.exp(own) if router.score == "softmax" else 1 / (1 + np.exp(-own))
            sums += p / p.sum()
            counts[np.asarray(row)] += 1
    tokens = 2 * real_BT.sum()
    expected = E * np.sum(counts / tokens * (sums / tokens))

    def load(rows):
        loads = [RouterLoad.of(*(x[rows] for x in layer), real_BT[rows]) for layer in layers]
        return jax.tree.map(lambda *x: jnp.stack(x), *loads)

    whole = load(slice(None))
    np.testing.assert_allclose(balance_loss(whole, whole), expected, rtol=1e-5)
    parts = [balance_loss(load(slice(row, row + 1)), whole) for row in range(3)]
    np.testing.assert_allclose(sum(parts), expected, rtol=1e-5)
    assert parts[2] == 0


def test_the_balance_loss_of_an_equal_load_is_the_number_of_chosen_experts():
    equal = RouterLoad(jnp.full((3, E), 5.0), jnp.full((3, E), 5.0 / C))
    np.testing.assert_allclose(balance_loss(equal, equal), C, rtol=1e-6)
    one = jnp.zeros((3, E)).at[:, 2].set(15.0)
    np.testing.assert_allclose(balance_loss(RouterLoad(one, one), RouterLoad(one, one)), E)


def test_biases_step_against_the_load():
    """The mean loads are 3 and 2; an expert with the mean load keeps its bias."""
    chosen_ME = jnp.float32([[7, 2, 3, 0], [2, 2, 2, 2]])
    balance = balanced(chosen_ME, 0.25)
    np.testing.assert_array_equal(
        balance.bias_step_ME, [[-0.25, 0.25, 0, 0.25], [0.0, 0.0, 0.0, 0.0]]
    )
    np.testing.assert_allclose(balance.load_excess, (4 / 3 + 0) / 2, rtol=1e-6)
    assert not np.any(balanced(jnp.zeros((2, 4)), 0.25).bias_step_ME)  # no token
