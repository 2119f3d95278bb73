"""Tests the data types between phases: defaults, static fields, and the key of a step."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base import types
from rl4p.base.types import (
    Episode,
    Finish,
    Prompt,
    Question,
    Rewards,
    Sampling,
    TrainingBatch,
    TrainState,
)
from rl4p.protocols.hook import StepInfo


def state(key, step, **fields):
    return TrainState(
        step=jnp.int32(step), params={}, optimizer_state=(), key=key, memory={}, **fields
    )


def same(a, b):
    return np.array_equal(jax.random.key_data(a), jax.random.key_data(b))


def test_the_key_of_a_step_is_folded_from_the_runs_key():
    key = jax.random.key(7)
    assert same(state(key, 3).step_key(), jax.random.fold_in(key, 3))
    keys = [state(key, 0), state(key, 1), state(jax.random.key(8), 0)]
    assert len({tuple(jax.random.key_data(x.step_key()).tolist()) for x in keys}) == 3
    assert same(jax.jit(TrainState.step_key)(state(key, 3)), state(key, 3).step_key())


def test_no_average_is_kept_by_default_and_none_is_shared():
    first, second = (state(jax.random.key(0), 0) for _ in range(2))
    assert first.average == {}
    assert first.average is not second.average


def test_all_fields_of_a_state_are_arrays_that_a_step_may_change():
    """A checkpoint therefore holds them all, and another step number compiles nothing."""
    ours = state(jax.random.key(0), 5, average={"w": jnp.ones(2)})
    assert len(jax.tree.leaves(ours)) == 3  # the step, the key and the average
    calls = []

    @jax.jit
    def count(state):
        calls.append(state)
        return state.step

    count(ours)
    count(dataclasses.replace(ours, step=jnp.int32(6)))
    assert len(calls) == 1


def test_sampling_is_from_the_plain_distribution_by_default_and_can_be_compiled_in():
    assert Sampling() == Sampling(temperature=1.0, top_k=0, top_p=1.0)
    assert hash(Sampling(top_k=3)) == hash(Sampling(top_k=3))
    assert Sampling(top_k=3) != Sampling()


def test_the_ways_to_finish_have_the_numbers_that_records_hold():
    assert {finish.name: int(finish) for finish in Finish} == {"STOP": 0, "LENGTH": 1, "ABORT": 2}
    assert all(np.int8(finish) == finish for finish in Finish)


def test_a_question_needs_no_solution_and_a_prompt_no_system_prompt():
    first, second = (Question(id="a", question="q", answer="1", task="t") for _ in range(2))
    assert first.solution is None
    assert first.metadata == {}
    assert first.metadata is not second.metadata
    prompt = Prompt(id="a", question="q", answer="1", task="t", tokens=(1, 2))
    assert prompt.system_prompt is None
    assert isinstance(prompt, Question)


def test_the_messages_of_a_prompt_and_of_its_episode():
    messages = tuple({"role": role, "content": role} for role in ("user", "assistant"))
    plain = Prompt(id="a", question="q", answer="1", task="t", tokens=())
    asked, system = {"role": "user", "content": "q"}, {"role": "system", "content": "s"}
    assert plain.prompt_messages() == plain.prompt_messages("") == [asked]
    assert plain.prompt_messages("s") == [system, asked]
    spoken = dataclasses.replace(plain, messages=messages + messages[1:], system_prompt="s")
    assert spoken.prompt_messages("t") == [system, messages[0]]
    answer = {"role": "assistant", "content": "r"}
    assert Episode(prompt=spoken, response="r").messages == [system, messages[0], answer]
    spoken = dataclasses.replace(spoken, messages=(system, *messages, messages[0]))
    assert spoken.prompt_messages("t") == [system, *messages, messages[0]]


def test_rows_of_trajectories_are_taken_and_what_is_known_of_all_rows_stays(make_trajectories):
    """Group size and prompt columns are static: another value compiles another program."""
    plain = make_trajectories((1, 2))
    assert (plain.group_size, plain.prompt_columns) == (1, 0)
    known = dataclasses.replace(plain, group_size=2, prompt_columns=4)
    second = jax.tree.map(lambda x: x[1:], known)
    assert (second.group_size, second.prompt_columns) == (2, 4)
    assert second.tokens_BT.shape == (1, 16)
    assert len(jax.tree.leaves(known)) == 8
    assert jax.tree.structure(known) != jax.tree.structure(plain)


def test_rewards_of_tokens_are_absent_by_default(make_rewards):
    rewards = make_rewards((1, 0))
    assert rewards.tokens_BT is None
    assert len(jax.tree.leaves(rewards)) == 3
    with_tokens = dataclasses.replace(rewards, tokens_BT=jnp.zeros((2, 4)))
    assert len(jax.tree.leaves(with_tokens)) == 4


def test_a_training_batch_is_taken_apart_by_rows(make_trajectories):
    trajectories = make_trajectories((1, 2, 3))
    batch = TrainingBatch(
        trajectories=trajectories,
        advantages_BT=jnp.ones((3, 16)),
        loss_mask_BT=trajectories.response_mask_BT,
        scores={"entropy": jnp.zeros((3, 16))},
    )
    last = jax.tree.map(lambda x: x[2:], batch)
    np.testing.assert_array_equal(last.loss_mask_BT[0], trajectories.response_mask_BT[2])
    assert last.scores["entropy"].shape == (1, 16)
    assert last.trajectories.finish_B.shape == (1,)


def test_what_flows_is_never_changed_in_place():
    flowing = [*(x for x in vars(types).values() if dataclasses.is_dataclass(x)), StepInfo]
    assert len(flowing) == 13
    assert [x for x in flowing if not x.__dataclass_params__.frozen] == []
    rewards = Rewards(total_B=0, terms={}, valid_B=True)
    with pytest.raises(dataclasses.FrozenInstanceError):
        rewards.total_B = 1


@pytest.mark.parametrize("module", [np, jnp])
def test_a_term_graded_the_valid_samples_to_which_it_applies(module):
    rewards = Rewards(
        total_B=module.zeros(3),
        terms={"a": module.asarray([1.0, np.nan, 0.0])},
        valid_B=module.asarray([True, True, False]),
    )
    assert rewards.graded("a").tolist() == [True, False, False]
    assert isinstance(rewards.graded("a"), type(rewards.valid_B))
