"""The description of a run before it starts."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from rl4p.configuration import compose
from rl4p.loop.evaluation import Evaluation
from rl4p.model.policy import padded_width
from rl4p.runs import description
from rl4p.runs.build import build
from rl4p.runs.description import describe_model_and_data

SMALL = (
    *("model=scratch", "model.width=32", "model.layers=1", "model.heads=2", "mesh.dp=1"),
    *("data.train_size=20", "data.held_out_size=4", "prompts_per_step=4", "group_size=2"),
)


@pytest.mark.slow
def test_the_sizes_of_a_run_are_those_of_its_parts():
    experiment = build(compose([*SMALL, "max_response_tokens=40", "update.epochs=2"]))
    width = padded_width(max(len(prompt.tokens) for prompt in experiment.prompts)) + 40
    text = experiment.sizes
    assert "20 prompts and 4 held out" in text
    assert f"a step: 4 prompts x 2 samples = 8 sequences, at most {8 * width:,} tokens" in text
    assert "2 updates of at most" in text
    assert "frozen" not in text
    state = experiment.state
    whole = sum(x.nbytes for x in jax.tree.leaves((state.params, state.optimizer_state)))
    assert f"a checkpoint has {whole / 1e6:,.1f} MB" in text


@pytest.mark.parametrize(
    ("every", "times", "more"), [(5, 3, True), (4, 4, True), (0, 2, True), (0, 2, False)]
)
def test_the_evaluations_stand_beside_the_training(every, times, more):
    """Of 10 steps; the first evaluation is before them, and the last after them."""
    prompts = 100 if more else 3
    sets: Any = [[None] * prompts]
    parts: Any = {"phases": None, "policy": None, "term": "correct", "rows": 8}
    evaluation = Evaluation(every=every, sets=sets, samples=3, **parts)
    config = SimpleNamespace(steps=10, prompts_per_step=2, group_size=4)
    text = description.describe_evaluation(config, evaluation)
    responses = f"{times * prompts * 4:,} responses, beside 80 to train on"
    assert text.startswith(f"evaluation: {times} times {prompts} prompts = {responses}")
    assert ("more than training" in text) is more


def test_adapters_stand_beside_what_is_frozen_and_dropped_prompts_are_counted(policy):
    adapters = {"w": np.zeros(250_000, np.float32)}
    policy = replace(policy, frozen={"w": np.zeros(750_000, np.float32)})
    evaluation = SimpleNamespace(samples=3, prompts=[1, 2])
    text = describe_model_and_data(policy, adapters, [1] * 1000, evaluation, 6)
    assert text.startswith("0.25M parameters and 0.75M frozen (25.0% trained) on 1 ")
    assert text.endswith(
        "; 1,000 prompts and 2 held out, each with 3 samples (6 dropped for being longer than "
        "max_prompt_tokens)"
    )
