import jax
import numpy as np
import pytest

from rl4p.update.dppo import DPPO


@pytest.mark.parametrize(
    ("advantage", "probability", "anchor", "weight", "clipped"),
    [
        (1.0, 0.4, 0.3, 4 / 3, None),
        (1.0, 0.5, 0.3, 0.0, "clip_high"),
        (1.0, 0.1, 0.3, 1 / 3, None),  # a good token may regain lost probability
        (-1.0, 0.5, 0.3, 5 / 3, None),
        (-1.0, 0.2, 0.3, 2 / 3, None),
        (-1.0, 0.1, 0.3, 0.0, "clip_low"),
        (1.0, 0.1, 0.001, 20.0, None),  # a rare token keeps its gradient, with a capped weight
        (0.0, 0.9, 0.1, 9.0, None),
    ],
)
def test_tokens_are_dropped_by_the_change_of_their_probability(
    make_batch, evaluate, advantage, probability, anchor, weight, clipped
):
    """The proximal policy is far from both and does not matter."""
    batch = make_batch([[advantage]], [[-9.0]], behaviour=[[np.log(anchor)]])
    loss_BT, extras, slope_BT = evaluate(DPPO(), [[np.log(probability)]], batch)
    expected = -weight * advantage * np.log(probability)
    np.testing.assert_allclose(loss_BT, [[expected]], rtol=1e-5)
    np.testing.assert_allclose(slope_BT, [[-weight * advantage]], rtol=1e-5)
    assert {name for name, x in extras.items() if x.all()} == ({clipped} - {None})


@pytest.mark.parametrize(
    ("options", "version"), [({"old_policy": "proximal"}, 0), ({"old_policy": "behaviour"}, -1)]
)
def test_the_old_policy_may_be_the_proximal_one_and_is_where_none_sampled(
    make_batch, evaluate, options, version
):
    batch = make_batch([[1.0]], [[np.log(0.45)]], behaviour=[[0.0]], version=version)
    np.testing.assert_allclose(
        evaluate(DPPO(**options), [[np.log(0.5)]], batch)[2], [[-10 / 9]], rtol=1e-5
    )


@pytest.mark.parametrize(("divergence", "delta"), [("total_variation", 0.15), ("kl", 0.05)])
def test_tokens_are_dropped_by_the_divergence_of_the_paper(make_batch, evaluate, divergence, delta):
    """Its formulas token by token, in float64."""
    random = np.random.default_rng(5)
    pi, mu = random.uniform(0.001, 0.999, (2, 20, 20))
    advantages = random.normal(0, 1, (20, 20))
    expected, dropped = np.zeros((20, 20)), 0
    for at in np.ndindex(20, 20):
        p, q, a = pi[at], mu[at], advantages[at]
        far = abs(p - q)
        if divergence == "kl":
            far = q * np.log(q / p) + (1 - q) * np.log((1 - q) / (1 - p))
        away = (a > 0 and p / q > 1) or (a < 0 and p / q < 1)
        dropped += far > delta and away
        expected[at] = 0 if far > delta and away else -a * min(p / q, 20)
    assert 50 < dropped < 350
    with jax.enable_x64(True):
        batch = make_batch(advantages, np.log(mu))
        batch = jax.tree.map(lambda x: x.astype(float) if x.dtype == np.float32 else x, batch)
        log_mu = np.asarray(batch.trajectories.behaviour_logprobs_BT)  # rounded to float32
        update = DPPO(divergence=divergence, delta=delta)
        loss_BT, _, slope_BT = evaluate(update, np.log(pi), batch)
    ratio = mu / np.exp(log_mu)
    rounded = np.where(expected == 0, 0, expected * ratio * np.asarray(batch.advantages_BT))
    np.testing.assert_allclose(slope_BT * advantages, rounded, rtol=1e-6)
    np.testing.assert_allclose(loss_BT, slope_BT * np.log(pi), rtol=1e-6)


@pytest.mark.parametrize(("now", "before"), [(0.0, -1e-9), (-1e-9, 0.0), (-1e4, -0.1), (0.0, 0.0)])
def test_a_certain_token_has_a_finite_divergence(make_batch, evaluate, now, before):
    for advantage in (1.0, -1.0):
        batch = make_batch([[advantage]], [[before]])
        results = evaluate(DPPO(divergence="kl", delta=0.05), [[now]], batch)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(results))
    assert (results[1]["clip_low"] == (now == -1e4)).all()
