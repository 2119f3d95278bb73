import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.types import Finish, Sampling
from rl4p.engine.decode import SharedDistribution
from rl4p.loop.checks import check_trajectories
from rl4p.rollout.naive_sampler import NaiveSampler, StaticBatch, generate

R = 8
SAMPLER = NaiveSampler(max_response_tokens=R)


@pytest.fixture(scope="module")
def ending(policy):
    """One token in eight ends a response, so that they end early, and at several ids."""
    return dataclasses.replace(policy, end_ids=tuple(range(0, 264, 8)))


def tokens_of(trajectories, row):
    """The response of a row, cut out by its mask."""
    mask = np.asarray(trajectories.response_mask_BT[row])
    return np.asarray(trajectories.tokens_BT[row])[mask].tolist()


def assert_equal(ours, theirs):
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.5, "top_k": 20},
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"temperature": 1.5, "top_p": 0.9}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_behaviour_logprobs_are_those_of_the_trainer(sample, policy, params, score_all, options):
    sampler = dataclasses.replace(SAMPLER, **options)
    trajectories, _ = sample(sampler)
    check_trajectories(trajectories)
    scores, *_ = score_all(policy.decoder, params, trajectories, sampler.sampling)
    mask = np.asarray(trajectories.response_mask_BT)
    np.testing.assert_allclose(
        trajectories.behaviour_logprobs_BT, np.where(mask, scores, 0), atol=1e-4
    )
    assert np.std(scores[mask]) > 0.1


def test_a_response_goes_on_to_its_first_end_token_and_no_further(sample, ending):
    finishes, longest = set(), 0
    for seed in range(16):
        trajectories, _ = sample(SAMPLER, seed=seed)
        mask = np.asarray(trajectories.response_mask_BT)
        assert not mask[:, :16].any()
        for row in range(8):
            tokens = tokens_of(trajectories, row)
            length = len(tokens)
            np.testing.assert_array_equal(
                mask[row], (np.arange(24) >= 16) & (np.arange(24) < 16 + length)
            )
            assert not set(tokens[:-1]) & set(ending.end_ids)
            stopped = tokens[-1] in ending.end_ids
            assert stopped or length == R
            assert trajectories.finish_B[row] == (Finish.STOP if stopped else Finish.LENGTH)
            assert (trajectories.tokens_BT[row, 16 + length :] == ending.pad_id).all()
            finishes.add((stopped, tokens[-1] if stopped else None))
            longest = max(longest, length * stopped)
    # Both ways to end were seen, several end tokens, and one of them at the very limit.
    assert len(finishes) > 4
    assert (False, None) in finishes
    assert longest == R


def test_rows_are_their_prompts_side_by_side(sample, prompts):
    trajectories, episodes = sample(SAMPLER)
    assert trajectories.group_ids_B.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    mask = np.asarray(trajectories.response_mask_BT)
    np.testing.assert_array_equal(trajectories.policy_version_BT, np.where(mask, 3, -1))
    of_rows = [episode.prompt for episode in episodes]
    assert of_rows == [prompt for prompt in prompts for _ in range(2)]
    for row, prompt in enumerate(of_rows):
        real = np.asarray(trajectories.segment_ids_BT[row]) > 0
        tokens = np.asarray(trajectories.tokens_BT[row])[real].tolist()
        assert tokens == [*prompt.tokens, *tokens_of(trajectories, row)]
        positions = np.asarray(trajectories.positions_BT[row])[real]
        np.testing.assert_array_equal(positions, np.arange(len(tokens)))


def test_greedy_tokens_are_the_argmax_of_the_trainer(sample, policy, params):
    trajectories, _ = sample(SAMPLER, greedy=True)
    hidden = jax.jit(policy.decoder.hidden)(
        params, trajectories.tokens_BT, trajectories.positions_BT, trajectories.segment_ids_BT
    )
    best = jnp.argmax(policy.decoder.logits(params, hidden), axis=-1)[:, :-1]
    mask = np.asarray(trajectories.response_mask_BT)[:, 1:]
    np.testing.assert_array_equal(
        np.asarray(trajectories.tokens_BT)[:, 1:][mask], np.asarray(best)[mask]
    )
    # The samples of a prompt are one and the same, and the key does not matter.
    for row in range(0, 8, 2):
        assert tokens_of(trajectories, row) == tokens_of(trajectories, row + 1)
    assert_equal(sample(SAMPLER, greedy=True, seed=5)[0], trajectories)


def test_temperature_zero_is_greedy_and_reported_at_temperature_one(sample):
    cold, _ = sample(dataclasses.replace(SAMPLER, temperature=0.0))
    greedy, _ = sample(SAMPLER, greedy=True)
    np.testing.assert_array_equal(cold.tokens_BT, greedy.tokens_BT)
    np.testing.assert_allclose(cold.behaviour_logprobs_BT, greedy.behaviour_logprobs_BT, atol=1e-5)


def test_the_key_decides_and_nothing_else(sample):
    first, second, other = (sample(SAMPLER, seed=seed)[0] for seed in (0, 0, 1))
    assert_equal(first, second)
    differ = [tokens_of(first, row) != tokens_of(other, row) for row in range(8)]
    assert sum(differ) >= 7
    siblings = [tokens_of(first, row) != tokens_of(first, row + 1) for row in range(0, 8, 2)]
    assert all(siblings)


def test_a_sequence_does_not_depend_on_its_neighbours(sample, prompts, make_prompt):
    """By its number in the batch it has keys of its own: other rows, more of them, longer ones."""
    together, _ = sample(SAMPLER)
    turned, _ = sample(SAMPLER, prompts=[prompts[0], *prompts[:0:-1]])
    long = make_prompt(tokens=tuple(range(20)))
    wide, _ = sample(SAMPLER, prompts=[prompts[0], long])
    for other in (turned, wide):
        for row in (0, 1):
            assert tokens_of(other, row) == tokens_of(together, row)
    assert wide.tokens_BT.shape == (4, 32 + R)


def test_tokens_come_from_the_distribution_that_is_reported(
    sample, policy, params, prompts, score_all
):
    """The mean log-probability of 1024 first tokens is minus the entropy, to four errors."""
    batches = [
        sample(SAMPLER, prompts=prompts[:1], group_size=8, seed=seed)[0] for seed in range(128)
    ]
    logprobs = np.concatenate([np.asarray(x.behaviour_logprobs_BT)[:, 16] for x in batches])
    _, entropy, *_ = score_all(policy.decoder, params, batches[0], SAMPLER.sampling)
    error = np.std(logprobs) / np.sqrt(len(logprobs))
    assert abs(np.mean(logprobs) + entropy[0, 16]) < 4 * error < 0.15


def test_new_parameters_are_used_at_once(sample, params):
    """No copy of the weights stays behind in the compiled program."""
    before, _ = sample(SAMPLER, greedy=True)
    after, _ = sample(SAMPLER, greedy=True, params=jax.tree.map(lambda x: -x, params))
    assert not np.array_equal(before.tokens_BT, after.tokens_BT)


def test_the_distribution_is_what_was_configured():
    sampler = NaiveSampler(max_response_tokens=4, temperature=0.5, top_k=3, top_p=0.9)
    assert sampler.sampling == Sampling(temperature=0.5, top_k=3, top_p=0.9)


def test_half_precision_scores_every_token_that_was_drawn(ending, params, prompts, score_all):
    """Top-k by rounded logits: a token on the edge may not be over it for the trainer."""
    policy = dataclasses.replace(
        ending, decoder=dataclasses.replace(ending.decoder, dtype="bfloat16")
    )
    sampler = dataclasses.replace(SAMPLER, top_k=4)
    trajectories, _ = sampler(
        policy, params, prompts, group_size=16, key=jax.random.key(0), version=0
    )
    scores, *_ = score_all(policy.decoder, params, trajectories, sampler.sampling)
    mask = np.asarray(trajectories.response_mask_BT)
    gap = np.abs(np.asarray(scores) - np.asarray(trajectories.behaviour_logprobs_BT))[mask]
    assert np.isfinite(gap).all()
    assert np.mean(gap) < 0.05


def test_the_loop_ends_with_the_last_row(ending, params):
    """Every token but one is an end, so that nothing is written behind the longest response."""
    policy = dataclasses.replace(ending, end_ids=tuple(range(1, 264)))
    tokens, ones = np.full((2, 16), 65, np.int32), np.ones(2, np.int32)
    keys = np.uint32([[0, 1], [2, 3]])
    numbers = {"lengths_B": 16 * ones, "limits_B": R * ones, "drawn_B": 0 * ones}
    sequences = StaticBatch(**numbers, least_B=0 * ones, keys_B=keys)
    drawn = generate(
        policy.decoder, R, policy.end_ids, policy.for_sampling(params), tokens, tokens > 0,
        sequences, SharedDistribution(sampling=Sampling(), greedy=False), policy.mesh,
    )  # fmt: skip
    out, logprobs, lengths = map(np.asarray, drawn)
    assert lengths.max() < R
    written = np.arange(R) < lengths.max()
    assert not out[:, ~written].any()
    assert not logprobs[:, ~written].any()
    assert (logprobs[:, 0] < 0).all()
