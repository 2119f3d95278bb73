"""Tests the policy as its own teacher with a context, against logits in float64, and a run."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Rewards
from rl4p.configuration import compose
from rl4p.loop.loop import train
from rl4p.loop.teacher import OwnTeacher
from rl4p.protocols.collection import Collected
from rl4p.runs.build import build

RUN = (
    *("model=scratch", "model.layers=1", "model.heads=2", "model.num_kv_heads=1"),
    *("model.feed_forward_width=32", "model.width=16", "mesh=single", "tracker=none"),
    *("data.train_size=64", "data.held_out_size=4", "max_response_tokens=8"),
    *("prompts_per_step=4", "group_size=2", "evaluation.every=0", "rollout.temperature=0.7"),
    *("advantage=distill", "update=reinforce", "+teacher=own_teacher"),
)
PROMPT = r'teacher.prompt="{question} (the answer is {answer})"'


@pytest.fixture(scope="module")
def scored():
    """A run, rows of two prompts, and their scores under weights that have changed since."""
    experiment = build(compose([*RUN, PROMPT, "steps=2"]))
    loop, state = experiment.loop, experiment.state
    prompts = experiment.prompts[:2]
    options = {"group_size": 2, "key": jax.random.key(1), "version": 0}
    trajectories, episodes = loop.phases.rollout(loop.policy, state.params, prompts, **options)
    rewards = Rewards(total_B=np.zeros(4), terms={}, valid_B=np.ones(4, bool))
    collected = Collected(
        trajectories=trajectories, episodes=episodes, rewards=rewards, memory={}, metrics={}
    )
    scores = loop.scoring(loop.phases, loop.policy, state, collected)
    return experiment, prompts, jax.device_get(trajectories), scores["teacher_logprobs"]


def test_the_scores_are_those_of_the_response_behind_the_context(scored, numpy_logits):
    experiment, prompts, t, scores_BT = scored
    policy, params = experiment.loop.policy, jax.device_get(experiment.state.params)
    mask_BT, vocabulary = t.response_mask_BT, policy.decoder.config.vocabulary
    assert mask_BT.sum() > 8
    for row in range(4):
        prompt = prompts[row // 2]
        plain = policy.tokenizer.decode(prompt.tokens)
        shown = plain.replace(prompt.question, f"{prompt.question} (the answer is {prompt.answer})")
        assert shown != plain
        before = policy.tokenizer(shown, add_special_tokens=False)["input_ids"]
        response = t.tokens_BT[row, mask_BT[row]]
        logits = numpy_logits(policy.decoder.config, params, np.array([*before, *response]))
        scaled = logits[len(before) - 1 : -1, :vocabulary] / 0.7
        logprobs = scaled - np.log(np.sum(np.exp(scaled), axis=1, keepdims=True))
        expected = logprobs[np.arange(len(response)), response]
        np.testing.assert_allclose(np.asarray(scores_BT)[row, mask_BT[row]], expected, atol=2e-6)
        assert np.abs(expected - t.behaviour_logprobs_BT[row, mask_BT[row]]).max() > 1e-3
    assert not np.asarray(scores_BT)[~mask_BT].any()


@pytest.mark.mixed_dtypes  # of optax
@pytest.mark.parametrize(
    "words",
    [
        ("teacher.weights=start",),
        pytest.param(("teacher.weights=average", "ema.decay=0.5"), marks=pytest.mark.slow),
    ],
)
def test_a_run_with_former_weights(words):
    experiment = build(compose([*RUN, PROMPT, *words, "steps=2"]))
    metrics = [info.metrics for info in train(experiment.loop, experiment.state)]
    assert all(x["update/grad_norm"] > 1e-4 for x in metrics)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("teacher.prompt='{question}'",), "shows the teacher nothing that the policy does not"),
        ((PROMPT, "teacher.weights=average"), r"needs a moving average: set ema\.decay"),
        ((PROMPT, "advantage=constant", "update=gkd"), "choose advantage=distill"),
        ((PROMPT, "teacher.weights=start", "reference.reset_every=5"), "replace: leave them out"),
        ((PROMPT, "advantage=grpo"), "advantage=grpo does not use a teacher"),
    ],
)
def test_what_cannot_act_is_refused(words, sentence):
    with pytest.raises(InputError, match=sentence):
        build(compose([*RUN, *words]))


@pytest.mark.parametrize("field", ["hint", "solution"])
def test_a_field_that_a_row_lacks_is_named(scored, field):
    experiment, prompts, *_ = scored
    teacher = OwnTeacher(prompt=f"{{question}} {{{field}}}")
    with pytest.raises(InputError, match=rf"the field \{{{field}\}}, which the row .* lacks"):
        teacher.tokens(experiment.loop.policy, replace(prompts[0], solution=None))
