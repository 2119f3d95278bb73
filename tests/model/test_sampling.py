import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.types import Sampling
from rl4p.model.sampling import (
    PROMPT,
    RESPONSE,
    ROWS,
    TWO_STAGES,
    draw,
    draw_each,
    first_over,
    log_share,
    next_tokens,
    penalized,
    sampling_logprobs,
)

LOGITS = np.random.default_rng(0).normal(0, 3, (5, 17)).astype(np.float32)


def by_sorting(logits_V, sampling):
    """Computes one distribution, token by token from the most probable one."""
    logits_V = np.float64(logits_V) / (sampling.temperature or 1.0)
    order = np.argsort(-logits_V)[: sampling.top_k or None]
    probabilities = np.exp(logits_V[order] - logits_V.max())
    probabilities /= probabilities.sum()
    kept, before = [], 0.0
    for token, probability in zip(order, probabilities, strict=True):
        if sampling.top_p < 1 and before >= sampling.top_p:
            break
        kept.append(token)
        before += probability
    result = np.full(logits_V.shape, -np.inf)
    result[kept] = logits_V[kept] - np.log(np.sum(np.exp(logits_V[kept])))
    return result


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 1.5])
@pytest.mark.parametrize("top_k", [0, 1, 5, 17, 100])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.5, 1e-6])
def test_the_distribution_is_that_of_plain_sorting(temperature, top_k, top_p):
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    ours = sampling_logprobs(jnp.asarray(LOGITS), sampling)
    np.testing.assert_allclose(ours, [by_sorting(row, sampling) for row in LOGITS], rtol=1e-5)
    np.testing.assert_allclose(np.exp(ours).sum(axis=-1), 1, rtol=1e-6)


def test_top_p_is_taken_from_what_top_k_left():
    """After top_k = 2, 0.4 and 0.3 of 0.4, 0.3, 0.2, 0.1 are 4/7 and 3/7: 0.5 < 4/7 keeps one."""
    logits = jnp.log(jnp.asarray([0.2, 0.4, 0.1, 0.3]))
    both = sampling_logprobs(logits, Sampling(top_k=2, top_p=0.5))
    np.testing.assert_array_equal(both, [-np.inf, 0, -np.inf, -np.inf])
    alone = sampling_logprobs(logits, Sampling(top_p=0.5))
    np.testing.assert_allclose(np.exp(alone), [0, 4 / 7, 0, 3 / 7], rtol=1e-6)


def test_equal_logits_are_kept_or_cut_together():
    np.testing.assert_allclose(
        np.exp(sampling_logprobs(jnp.asarray([1.0, 1.0, 0.0, 1.0]), Sampling(top_k=2))),
        [1 / 3, 1 / 3, 0, 1 / 3],
        rtol=1e-6,
    )


def test_the_gradient_outside_the_support_is_zero_and_never_nan():
    sampling = Sampling(temperature=0.7, top_k=5, top_p=0.9)
    best = int(LOGITS[0].argmax())
    gradient = jax.grad(lambda x: sampling_logprobs(x, sampling)[best])(jnp.asarray(LOGITS[0]))
    inside = np.isfinite(by_sorting(LOGITS[0], sampling))
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(np.asarray(gradient)[~inside], 0)
    assert np.all(np.asarray(gradient)[inside] != 0)


@pytest.mark.parametrize("sampling", [Sampling(top_k=2), Sampling(top_p=0.5)], ids=str)
def test_a_token_that_was_drawn_stays_in_the_support(sampling):
    """Two of 0.4, 0.3, 0.2, 0.1 are kept, and also the drawn token."""
    logits = jnp.log(jnp.asarray([0.2, 0.4, 0.1, 0.3]))
    with_third = np.exp(sampling_logprobs(logits, sampling, jnp.asarray(2)))
    np.testing.assert_allclose(with_third, [0, 4 / 8, 1 / 8, 3 / 8], rtol=1e-6)
    within = sampling_logprobs(logits, sampling, jnp.asarray(1))
    np.testing.assert_array_equal(within, sampling_logprobs(logits, sampling))


@pytest.mark.parametrize("greedy", [False, True])
def test_tokens_are_those_that_jax_draws_with_each_row_s_key(greedy):
    sampling = Sampling(temperature=0.7, top_k=5, top_p=0.9)
    keys, t = jax.random.split(jax.random.key(0), len(LOGITS)), jnp.arange(len(LOGITS))
    logprobs = sampling_logprobs(jnp.asarray(LOGITS), sampling)
    for turn in range(20):
        tokens, of_tokens = draw(jnp.asarray(LOGITS), sampling, keys, t + turn, jnp.bool_(greedy))
        folded = jax.vmap(jax.random.fold_in)(keys, t + turn)
        by_jax = jax.vmap(jax.random.categorical)(folded, logprobs)
        expected = logprobs.argmax(axis=-1) if greedy else by_jax
        np.testing.assert_array_equal(tokens, expected)
        assert tokens.dtype == jnp.int32
        chosen = jnp.take_along_axis(logprobs, expected[:, None], axis=1)[:, 0]
        np.testing.assert_allclose(of_tokens, chosen, rtol=1e-6)


def test_of_equal_tokens_greedy_decoding_takes_the_first_and_nan_stays_in_the_vocabulary():
    logits = jnp.asarray([[1.0, 3.0, 0.0, 3.0], [2.0, 2.0, 2.0, 2.0], [jnp.nan] * 4])
    keys = jax.random.split(jax.random.key(0), 3)
    tokens, logprobs = draw(logits, Sampling(), keys, jnp.zeros(3, int), jnp.bool_(True))
    np.testing.assert_array_equal(tokens[:2], [1, 0])
    assert 0 <= tokens[2] < 4
    assert np.isnan(logprobs[2])


def test_equal_logits_at_the_edge_of_top_p_are_kept_together():
    """Half of (0.4, 0.2, 0.2, 0.2) needs two tokens; equal tokens stay together in any order."""
    logits = jnp.log(jnp.asarray([0.2, 0.4, 0.2, 0.2]))
    kept = np.exp(sampling_logprobs(logits, Sampling(top_p=0.5)))
    np.testing.assert_allclose(kept, [0.2, 0.4, 0.2, 0.2], rtol=1e-6)


@pytest.mark.parametrize(
    ("min_p", "kept"),
    [(0.0, [0.1, 0.4, 0.2, 0.3]), (0.5, [0, 4 / 9, 2 / 9, 3 / 9]), (1, [0, 1, 0, 0])],
)
def test_min_p_is_a_share_of_the_largest_probability(min_p, kept):
    logits = jnp.log(jnp.asarray([0.1, 0.4, 0.2 * (1 + 1e-6), 0.3]))
    logprobs = sampling_logprobs(logits, Sampling(min_p=min_p))
    np.testing.assert_allclose(np.exp(logprobs), kept, rtol=1e-5)


def test_penalties_change_the_logits_of_tokens_that_occurred():
    """By hand: logits 2 and -2 with factor 4 are 0.5 and -8; the response's lose 0.25 more."""
    logits = jnp.asarray([[2.0, -2.0, 2.0, -2.0, 2.0], [1.0, 1.0, 1.0, 1.0, 1.0]])
    seen = jnp.asarray([[PROMPT, PROMPT, RESPONSE, RESPONSE, 0], [0, 0, 0, 0, RESPONSE]], jnp.uint8)
    factor, less = jnp.asarray([4.0, 1.0]), jnp.asarray([0.25, -1.0])
    expected = [[0.5, -8.0, 0.25, -8.25, 2.0], [1.0, 1.0, 1.0, 1.0, 2.0]]
    np.testing.assert_allclose(penalized(logits, seen, factor, less), expected)


def test_a_drawn_token_is_kept_in_its_own_row_only():
    logits = jnp.log(jnp.asarray([[0.2, 0.4, 0.1, 0.3]] * 2))
    drawn = sampling_logprobs(logits, Sampling(top_k=2, top_p=0.9), jnp.asarray([2, 3]))
    expected = [[0, 4 / 8, 1 / 8, 3 / 8], [0, 4 / 7, 0, 3 / 7]]
    np.testing.assert_allclose(np.exp(drawn), expected, rtol=1e-6)


def test_greedy_decoding_reports_its_token_at_temperature_one():
    logits = jnp.log(jnp.asarray([[0.2, 0.5, 0.3]]))
    keys = jax.random.split(jax.random.key(0), 1)
    greedy = Sampling(temperature=0.0)
    token, logprob = draw(logits, greedy, keys, jnp.zeros(1, int), jnp.bool_(True))
    assert token.tolist() == [1]
    np.testing.assert_allclose(logprob, np.log([0.5]), rtol=1e-6)


MIXED = [
    Sampling(),
    Sampling(temperature=0.0),
    Sampling(temperature=0.7, top_k=3),
    Sampling(temperature=1.3, top_p=0.6),
    Sampling(temperature=0.9, top_k=6, top_p=0.8, min_p=0.1),
]


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "samplings", [MIXED, MIXED[:1] * 5, MIXED[1:2] * 5, MIXED[:2] * 2 + MIXED[:1]]
)
def test_each_row_is_drawn_from_its_own_distribution(samplings):
    keys_B = jax.random.split(jax.random.key(3), 5)
    t_B = jnp.arange(5)
    ours = draw_each(
        jnp.asarray(LOGITS),
        jnp.asarray([x.temperature for x in samplings]),
        jnp.asarray([x.top_k for x in samplings]),
        jnp.asarray([x.top_p for x in samplings]),
        jnp.asarray([log_share(x.min_p) for x in samplings]),
        keys_B,
        t_B,
        4,
    )
    for row, sampling in enumerate(samplings):
        one = slice(row, row + 1)
        greedy = jnp.asarray(sampling.temperature == 0)
        token, logprob = draw(jnp.asarray(LOGITS[one]), sampling, keys_B[one], t_B[one], greedy)
        assert int(ours.token_B[row]) == int(token[0])
        np.testing.assert_allclose(ours.logprob_B[row], logprob[0], rtol=1e-6)
        logprobs = np.asarray(sampling_logprobs(jnp.asarray(LOGITS[row]), sampling))
        best = np.argsort(-logprobs, kind="stable")[:4]
        np.testing.assert_allclose(ours.other_logprobs_BA[row], logprobs[best], rtol=1e-6)
        inside = np.isfinite(logprobs[best])
        assert ours.others_BA[row].tolist()[: inside.sum()] == best[inside].tolist()


LARGE = TWO_STAGES + 77  # neither a multiple of `ROWS` nor a power of two


def test_the_first_index_over_a_share_of_the_whole():
    masses = jnp.asarray([[0.0, 1.0, 0.0, 3.0, 0.0]] * 4)
    least_under_1 = np.nextafter(np.float32(1), np.float32(0))
    numbers = jnp.asarray([0.0, 0.2499, 0.25, least_under_1])
    sums = jnp.cumsum(masses, axis=1)
    np.testing.assert_array_equal(first_over(masses, sums, numbers), [1, 1, 3, 3])
    nothing = masses[:1] * np.nan, sums[:1] * np.nan
    np.testing.assert_array_equal(first_over(*nothing, numbers[:1]), [4])


def test_no_index_without_mass_is_chosen_where_the_sums_rise_by_rounding():
    rng = np.random.default_rng(0)
    masses = np.where(rng.random((64, 594)) < 0.08, np.exp(1.5 * rng.normal(size=(64, 594))), 0)
    masses = masses.astype(np.float32)
    sums = np.array(jnp.cumsum(jnp.asarray(masses), axis=1))
    rows, rises = np.nonzero((masses[:, 1:] == 0) & (sums[:, 1:] > sums[:, :-1]))
    assert len(rows) > 100
    numbers = sums[rows, rises] / sums[rows, -1]
    chosen = np.asarray(jax.jit(first_over)(masses[rows], sums[rows], numbers))
    assert (masses[rows, chosen] > 0).all()


def test_a_large_vocabulary_is_drawn_from_by_its_probabilities():
    """Within five standard deviations, for tokens in one set, in others and at both ends."""
    same_set = -(-LARGE // ROWS)
    rows, chances = 40_000, {0: 0.05, same_set: 0.2, 300: 0.1, 511: 0.25, LARGE - 1: 0.15}
    probs = np.full(LARGE, (1 - sum(chances.values())) / (LARGE - len(chances)), np.float32)
    probs[list(chances)] = list(chances.values())
    logprobs = jnp.broadcast_to(jnp.log(probs), (500, LARGE))
    keys = jax.random.split(jax.random.key(5), (rows // 500, 500))
    tokens = jax.lax.map(
        lambda keys: next_tokens(logprobs, keys, jnp.zeros(500, int), jnp.bool_(False))[0], keys
    )
    tokens = np.asarray(tokens).reshape(-1)
    assert tokens.dtype == np.int32
    for token, chance in chances.items():
        deviation = (chance * (1 - chance) / rows) ** 0.5
        assert abs((tokens == token).mean() - chance) < 5 * deviation
    others = np.setdiff1d(tokens, list(chances))
    assert len(others) > 5000  # of 8,264 others, a quarter of 40,000 draws
    per_half = (tokens[~np.isin(tokens, list(chances))] < LARGE // 2).mean()
    assert abs(per_half - 0.5) < 0.03


@pytest.mark.slow
def test_no_token_outside_the_support_is_drawn_from_a_large_vocabulary():
    logits = np.random.default_rng(0).normal(0, 1, (500, LARGE)).astype(np.float32)
    keys = jax.random.split(jax.random.key(1), 500)
    sampling = Sampling(top_k=3)
    tokens, logprobs = draw(logits, sampling, keys, jnp.arange(500), jnp.bool_(False))
    best = np.argsort(-logits, axis=1)[:, :3]
    assert (best == np.asarray(tokens)[:, None]).any(axis=1).all()
    assert len(set((best == np.asarray(tokens)[:, None]).argmax(axis=1))) == 3
    expected = np.take_along_axis(
        np.asarray(sampling_logprobs(jnp.asarray(logits), sampling)), np.asarray(tokens)[:, None], 1
    )
    np.testing.assert_allclose(logprobs, expected[:, 0], rtol=1e-6)


@pytest.mark.quick(1)
@pytest.mark.parametrize("greedy", [False, True])
def test_log_probabilities_of_a_large_vocabulary_need_no_normalised_logits(greedy):
    logits = 100 + 5 * np.random.default_rng(3).normal(size=(64, LARGE)).astype(np.float32)
    keys = jax.random.split(jax.random.key(2), 64)
    tokens, logprobs = next_tokens(jnp.asarray(logits), keys, jnp.arange(64), jnp.bool_(greedy))
    exact = np.float64(logits)
    exact -= np.logaddexp.reduce(exact, axis=1, keepdims=True)
    expected = np.take_along_axis(exact, np.asarray(tokens)[:, None], 1)[:, 0]
    np.testing.assert_allclose(logprobs, expected, rtol=3e-6)


@pytest.mark.quick(1)
@pytest.mark.parametrize("V", [100, TWO_STAGES])
def test_a_greedy_token_is_that_of_the_largest_logit_whatever_the_other_rows_are(V):
    """Two logits that differ in their last bit have the same log-probability."""
    least = np.float32(0.01)
    row = np.full(V, -1, np.float32)
    row[10], row[20] = least, np.nextafter(least, np.float32(1))
    assert jax.nn.log_softmax(jnp.asarray(row))[10] == jax.nn.log_softmax(jnp.asarray(row))[20]
    logits, keys, t = jnp.asarray([row, row]), jax.random.split(jax.random.key(0), 2), jnp.arange(2)
    others = jnp.zeros(2, int), jnp.ones(2), jnp.full(2, -jnp.inf), keys, t
    for temperatures in ([0.0, 0.0], [0.0, 1.0]):
        assert draw_each(logits, jnp.asarray(temperatures), *others).token_B[0] == 20
    assert draw(logits, Sampling(), keys, t, jnp.bool_(True))[0].tolist() == [20, 20]


@pytest.mark.slow
def test_rows_of_a_large_vocabulary_are_drawn_by_their_own_keys_and_greedily():
    logits = jnp.asarray(np.random.default_rng(2).normal(0, 2, (4, LARGE)), jnp.float32)
    logits = logits.at[3].set(jnp.nan)
    keys, t = jax.random.split(jax.random.key(7), 4), jnp.arange(4)
    greedy = jnp.asarray([False, True, False, False])
    options = jnp.where(greedy, 0.0, 1.0), jnp.zeros(4, int), jnp.ones(4), jnp.full(4, -jnp.inf)
    ours = draw_each(logits, *options, keys, t)
    assert int(ours.token_B[1]) == int(jnp.argmax(logits[1]))
    for row in (0, 2):
        one = slice(row, row + 1)
        token, _ = draw(logits[one], Sampling(), keys[one], t[one], jnp.bool_(False))
        assert int(ours.token_B[row]) == int(token[0])
    assert 0 <= int(ours.token_B[3]) < LARGE
    draws = [
        draw(logits[:1], Sampling(), keys[:1], jnp.asarray([at]), jnp.bool_(False))[0]
        for at in range(20)
    ]
    assert len({int(token[0]) for token in draws}) > 10  # each t has numbers of its own


SHARDED = r"""
import re
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from rl4p.model.sampling import next_tokens

mesh = jax.make_mesh((4,), ("tp",))
whole, sharded = (NamedSharding(mesh, PartitionSpec(*x)) for x in ((), (None, "tp")))
logits = jax.random.normal(jax.random.key(0), (16, 151_936))
keys, t = jax.random.split(jax.random.key(1), 16), jnp.arange(16)

def drawn(logits, keys, t):
    return next_tokens(logits, keys, t, jnp.bool_(False))

program = jax.jit(drawn, in_shardings=(sharded, whole, whole), out_shardings=whole)
program = program.lower(logits, keys, t).compile()
found = re.findall(
    r"= \w+\[([\d,]*)\]\S* (?:all-gather|all-reduce|all-to-all|collective-permute)\(",
    program.as_text(),
)
sizes = [[int(n) for n in shape.split(",") if n] for shape in found]
assert sizes
assert max(max(shape[1:], default=0) for shape in sizes) == 594, sizes  # sums of columns
arrays = jax.device_put(logits, sharded), keys, t
(tokens, logprobs), (expected, others) = program(*arrays), jax.jit(drawn)(logits, keys, t)
assert tokens.tolist() == expected.tolist()
assert jnp.allclose(logprobs, others, rtol=1e-6)
"""


@pytest.mark.slow
def test_devices_that_share_a_vocabulary_exchange_sums_and_no_logits(on_devices):
    done = subprocess.run(
        [sys.executable, "-c", SHARDED], capture_output=True, text=True, env=on_devices(4)
    )
    assert done.returncode == 0, done.stderr[-3000:]
