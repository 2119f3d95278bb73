"""The subject of an evaluation: the parameters of a checkpoint or of a model, and the prompts."""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from omegaconf import DictConfig

from rl4p.configuration import instantiate
from rl4p.configuration.evaluation import Request
from rl4p.experiment.build import check_lengths, instantiate_phases
from rl4p.experiment.evaluation import (
    build_evaluation,
    check_tasks,
    check_term,
    encoder,
    evaluation_sampler,
    held_out_questions,
)
from rl4p.loop.evaluation import Evaluation
from rl4p.model.hub import lasting_name
from rl4p.runs.policy import load_policy
from rl4p.types import Prompt, TrainState

LINK = "rl4p.evaluates"  # tag: the identity of the evaluated run, of its tracker.json


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The evaluation, the state that it evaluates, and where this comes from.

    Attributes:
      source: {"run", "step", "average"}, or {"model"}; values of JSON.
      dropped: the number of prompts that were too long.
    """

    evaluation: Evaluation
    state: TrainState
    source: dict[str, Any]
    dropped: int


def build_subject(config: DictConfig, request: Request) -> Subject:
    """Builds the evaluation and loads the parameters.

    Raises:
      InputError: parts are incompatible, or data, checkpoint or weights are wrong.
    """
    phases = instantiate_phases(config)
    check_term(config, phases)
    data = instantiate(config.data) if config.evaluation.held_out else None
    held_out = held_out_questions(config, data)
    check_tasks(phases, *(each.questions for each in held_out))
    policy, params, step = load_policy(
        config, request.run, step=request.step, average=request.average
    )
    sampler = evaluation_sampler(config, phases)
    check_lengths(config, policy, sampler.max_response_tokens)
    evaluation, dropped = build_evaluation(
        config,
        replace(phases, rollout=sampler),
        policy,
        held_out,
        encoder(config, policy),
        rows=config.prompts_per_step * config.group_size,
    )
    state = TrainState(
        step=policy.mesh.replicate(np.int32(step or 0)),
        params=params,
        optimizer_state=None,
        key=jax.random.key(config.seed),
        memory=policy.mesh.replicate(phases.initial_memory()),
    )
    evaluation = replace(evaluation, of_average=False)  # `request.average` has selected it
    return Subject(
        evaluation=evaluation, state=state, source=source_of(config, request, step), dropped=dropped
    )


def source_of(config: DictConfig, request: Request, step: int | None) -> dict[str, Any]:
    """Returns where the parameters come from, as JSON."""
    if request.run is None:
        path = config.model.get("path")
        return {"model": lasting_name(path) if path else config.model._target_}
    return {"run": str(request.run.resolve()), "step": step, "average": request.average}


def identity_of(run: Path) -> str | None:
    """Returns the identity by which trackers know the run, or None if it has none."""
    path = run / "tracker.json"
    found = json.loads(path.read_text()) if path.is_file() else {}
    return found.get("rl4p.run")


def prompts_sha256(prompts: list[Prompt]) -> str:
    """Returns a digest of the tasks, ids, tokens and answers of prompts, in order."""
    digest = hashlib.sha256()
    for prompt in prompts:
        row = [prompt.task, prompt.id, list(prompt.tokens), prompt.answer]
        digest.update(json.dumps(row).encode())
    return digest.hexdigest()
