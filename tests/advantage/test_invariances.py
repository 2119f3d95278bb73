"""Invariances of every advantage, and of those relative to the group.

The advantages are all files of conf/advantage. A new advantage has to pass all tests here,
including those for group baselines, unless `NOT_RELATIVE` names it.
"""

import importlib
from dataclasses import replace
from functools import cache
from pathlib import Path

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from omegaconf import OmegaConf

CONF = Path(__file__).resolve().parents[2] / "conf" / "advantage"


def built(name, **changes):
    options = dict(OmegaConf.load(CONF / f"{name}.yaml"))  # PyYAML reads 1e-4 as a string
    module, _, class_name = options.pop("_target_").rpartition(".")
    return getattr(importlib.import_module(module), class_name)(**options | changes)


NAMES = sorted(path.stem for path in CONF.glob("*.yaml"))
VARIANTS = {
    "grpo, ddof 0": ("grpo", {"ddof": 0}),
    "gae, not whitened": ("gae", {"whiten": False, "gamma": 0.9, "alpha": 0.5}),
    "gdpo, weighted": ("gdpo", {"weights": {"correct": 2.0}}),
    "running_baseline, of roles": ("running_baseline", {"max_roles": 2}),
    "maxent_grpo, controlled": ("maxent_grpo", {"beta": 0.3, "tau_learning_rate": 0.1}),
}
FILES = {name: name for name in NAMES} | {variant: name for variant, (name, _) in VARIANTS.items()}
PHASES = {name: built(name) for name in NAMES}
PHASES |= {variant: built(name, **changes) for variant, (name, changes) in VARIANTS.items()}

NOT_RELATIVE = {
    *("constant", "distill", "gae", "global_norm", "reinforce", "reinforce_pp", "remax"),
    *("running_baseline", "turn_returns"),
}
RELATIVE = [name for name, file in FILES.items() if file not in NOT_RELATIVE]
# The sum over a group is 0 if the advantage only scales r - mean by a factor of the group.
SUMS_TO_NOTHING = {
    *("batch_std", "dr_grpo", "gdpo", "gpg", "grpo", "maxent_grpo", "maxrl", "preference"),
    *("rloo", "seed_grpo"),
}

# Eight samples in groups of three and five, in mixed order; one has no response.
LENGTHS = (8, 3, 2, 5, 1, 8, 0, 6)
GROUPS = (6, 6, 6, 1, 1, 1, 1, 1)
TASKS = (3, 3, 3, 0, 0, 0, 0, 0)

each = pytest.mark.parametrize("name", FILES)
each_relative = pytest.mark.parametrize("name", RELATIVE)


@cache
def compiled(name):
    return jax.jit(PHASES[name])


@pytest.fixture(scope="module")
def make_batch(make_trajectories, make_rewards, make_scores):
    def make(total, valid=(1,) * 8, group_ids=GROUPS, *, tokens=False):
        trajectories = make_trajectories(LENGTHS, group_ids=group_ids)
        rewards = make_rewards(total, valid)
        if tokens:
            drawn = np.random.default_rng(1).normal(size=(8, 16)).astype(np.float32)
            drawn = np.where(trajectories.response_mask_BT & rewards.valid_B[:, None], drawn, 0)
            total_B = rewards.total_B + np.sum(drawn, axis=1)
            rewards = replace(rewards, total_B=total_B, tokens_BT=jnp.asarray(drawn))
        scores = make_scores(trajectories) | {"task_ids": jnp.asarray(TASKS, jnp.int32)}
        return trajectories, rewards, scores

    return make


def arguments(name, scores):
    phase = PHASES[name]
    keywords = {}
    if hasattr(phase, "needs"):
        keywords["scores"] = {need: scores[need] for need in phase.needs}
    if hasattr(phase, "initial_state"):
        keywords["memory"] = phase.initial_state()
    return keywords


def run(name, batch, call=None):
    """Returns the advantages; checks that they are finite, float32, and 0 outside the loss mask."""
    trajectories, rewards, scores = batch
    result = (call or compiled(name))(trajectories, rewards, **arguments(name, scores))
    advantages = result[0] if hasattr(PHASES[name], "initial_state") else result
    assert advantages.dtype == np.float32
    assert advantages.shape == trajectories.response_mask_BT.shape
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(result))
    mask = np.asarray(trajectories.response_mask_BT & rewards.valid_B[:, None])
    advantages = np.asarray(advantages)
    np.testing.assert_array_equal(advantages[~mask], 0)
    return advantages


def graded(name, values, valid):
    """Returns rewards in sevenths, which round, or others if rounding or ties would matter."""
    if FILES[name] == "maxrl":  # divides by the mean, which may round to 0
        values = np.float32(values) / 8
    elif FILES[name] == "preference":  # ties depend on the order of the rows
        values = np.float32(values) + np.arange(8, dtype=np.float32) / 16
    else:
        values = np.float32(values) / 7
    return np.where(valid, values, 0)


@pytest.mark.quick(1)
@each
@settings(max_examples=10)  # for each advantage
@given(
    values=st.lists(st.integers(-3, 3), min_size=8, max_size=8),
    valid=st.lists(st.booleans(), min_size=8, max_size=8),
    order=st.permutations(range(8)),
    names=st.permutations(range(8)),
    tokens=st.booleans(),
)
def test_advantages_move_with_their_samples_whatever_the_order_and_the_ids(
    make_batch, name, values, valid, order, names, tokens
):
    tokens = tokens and FILES[name] != "maxrl"
    total, order = graded(name, values, valid), np.asarray(order)
    plain = run(name, make_batch(total, valid, tokens=tokens))
    renamed = [names[group] for group in GROUPS]
    shuffled = make_batch(total, valid, renamed, tokens=tokens)
    shuffled = jax.tree.map(lambda x: np.asarray(x)[order], shuffled)
    np.testing.assert_allclose(run(name, shuffled), plain[order], rtol=2e-5, atol=2e-5)


@each
def test_columns_that_the_policy_did_not_choose_change_nothing(make_batch, name):
    """Such columns are padding on both sides, and tokens of another turn within the response."""
    between = [] if getattr(PHASES[name], "reads_turns", False) else [9, 9, 10]
    columns = [0, 0, *between, 16]
    batch = make_batch((1, 0, 0, 0, 1, 2, 0, 0), (1, 1, 1, 1, 1, 1, 1, 0), tokens=True)
    plain = run(name, batch)

    def padded(x):
        if x.ndim == 1:
            return x
        fill = np.nan if np.issubdtype(x.dtype, np.floating) else 0
        return jnp.asarray(np.insert(np.asarray(x), columns, fill, axis=1))

    wide = run(name, jax.tree.map(padded, batch))
    np.testing.assert_allclose(wide, np.insert(plain, columns, 0, axis=1), rtol=2e-5, atol=2e-5)


@pytest.mark.quick(5)
@each
def test_the_compiled_phase_is_the_one_that_is_written(make_batch, name):
    batch = make_batch((1, 0, 0, 0, 1, 2, 0, 3), (1, 1, 1, 1, 0, 1, 1, 1), tokens=True)
    eager = run(name, batch, call=PHASES[name])
    np.testing.assert_allclose(run(name, batch), eager, rtol=1e-5, atol=1e-5)
    on_host = jax.tree.map(np.asarray, batch)
    np.testing.assert_allclose(run(name, on_host), eager, rtol=1e-5, atol=1e-5)


@each
def test_an_invalid_sample_has_none_and_counts_for_nothing(make_batch, name):
    total, valid = (1, 0, 0, 0, 1, 2, 0, 0), (1, 1, 0, 1, 1, 1, 1, 0)
    rest = run(name, make_batch(total, valid, tokens=True))
    np.testing.assert_array_equal(rest[[2, 7]], 0)
    assert (rest[[0, 1, 3, 4, 5]] != 0).any()
    # The same, with the invalid samples in a separate group.
    apart = make_batch(total, valid, (6, 6, 0, 1, 1, 1, 1, 0), tokens=True)
    np.testing.assert_allclose(rest, run(name, apart), rtol=1e-6)
    # The same, with arbitrary values in the rows of invalid samples.
    invalid = ~np.asarray(valid, bool)

    def spoilt(x):
        if not np.issubdtype(x.dtype, np.floating):
            return x
        rows = invalid.reshape(-1, *[1] * (x.ndim - 1))
        return jnp.asarray(np.where(rows, np.float32(np.nan), x))

    trajectories, rewards, scores = make_batch(total, valid, tokens=True)
    rewards, scores = jax.tree.map(spoilt, (rewards, scores))
    np.testing.assert_array_equal(run(name, (trajectories, rewards, scores)), rest)


@each
def test_a_response_without_tokens_disturbs_nobody(make_batch, name):
    """Its reward may count in baselines. Its row has no advantage, and everything stays finite."""
    batch = make_batch((1, 0, 0, 0, 1, 2, 5, 0))
    assert (run(name, batch)[6] == 0).all()
    silent = replace(batch[0], response_mask_BT=jnp.zeros((8, 16), bool))
    np.testing.assert_array_equal(run(name, (silent, *batch[1:])), 0)


@each
def test_nothing_valid_gives_nothing_and_leaves_the_memory(make_batch, name):
    batch = make_batch((0,) * 8, (0,) * 8)
    np.testing.assert_array_equal(run(name, batch), 0)
    if hasattr(PHASES[name], "initial_state"):
        keywords = arguments(name, batch[2])
        _, memory = compiled(name)(*batch[:2], **keywords)
        jax.tree.map(np.testing.assert_array_equal, memory, keywords["memory"])


@each
def test_what_it_asks_for_is_known(make_batch, name):
    known = set(make_batch((0,) * 8)[2])
    assert set(getattr(PHASES[name], "needs", ())) <= known


@each_relative
@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 0.9, 1 / 3, 1e-8, 1e8, -0.7])
def test_equal_rewards_give_exactly_zero(make_batch, name, value):
    """By rounding, the mean of three 0.9 is not 0.9, and the mean of seven 0.1 is not 0.1."""
    alike = (value,) * 8
    np.testing.assert_array_equal(run(name, make_batch(alike, group_ids=(2,) * 7 + (5,))), 0)
    np.testing.assert_array_equal(run(name, make_batch(alike)), 0)
    np.testing.assert_array_equal(run(name, make_batch(alike, (1, 0, 1, 1, 1, 0, 1, 1))), 0)
    beside = run(name, make_batch((value,) * 3 + (0.25, 0.5, 1, 1, 3)))
    np.testing.assert_array_equal(beside[:3], 0)
    assert (beside[3:] != 0).any()


@each_relative
def test_a_sample_without_a_valid_sibling_has_none(make_batch, name):
    alone = make_batch(np.arange(8) + 1, group_ids=np.arange(8))
    np.testing.assert_array_equal(run(name, alone), 0)
    one_left = run(name, make_batch((5, 0, 0, 1, 2, 3, 4, 5), (1, 0, 0, 1, 1, 1, 1, 1)))
    np.testing.assert_array_equal(one_left[:3], 0)
    assert (one_left[3:] != 0).any()


@each_relative
def test_the_better_gets_more_whatever_all_of_them_share(make_batch, name):
    total = np.asarray([1, 0, 0, 3, 1, 0, 0, 2])
    plain = run(name, make_batch(total))[:, 8]
    assert plain[0] > 0 >= plain[1:3].max()
    assert plain[3] > 0
    assert plain[3] >= plain[7] >= plain[4] >= plain[5]
    if FILES[name] != "maxrl":
        shifted = run(name, make_batch(total + 4))[:, 8]
        np.testing.assert_allclose(plain, shifted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in RELATIVE if FILES[name] in SUMS_TO_NOTHING])
def test_a_group_sums_to_nothing(make_trajectories, make_batch, name):
    total = np.asarray([1, 0, 0.5, 3, 1, 0, 0, 2])
    _, rewards, scores = make_batch(total)
    scores = jax.tree.map(jnp.nan_to_num, scores)
    full = make_trajectories((8,) * 8, group_ids=GROUPS)
    advantages = run(name, (full, rewards, scores))[:, 8]
    np.testing.assert_allclose(advantages[:3].sum(), 0, atol=1e-5)
    np.testing.assert_allclose(advantages[3:].sum(), 0, atol=1e-5)
    assert np.abs(advantages).sum() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["global_norm", "reinforce_pp"])
@pytest.mark.parametrize("value", [0.1, 0.9, 1 / 3, 1e8])
def test_a_batch_of_equal_rewards_is_exactly_zero(make_batch, name, value):
    np.testing.assert_array_equal(run(name, make_batch((value,) * 8)), 0)
