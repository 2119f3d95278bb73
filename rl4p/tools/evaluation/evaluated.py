"""What `rl4p.evaluate` evaluates: the parameters of a checkpoint or of a model, and the prompts."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from omegaconf import DictConfig

from rl4p.base.types import Finish, TrainState
from rl4p.command.evaluation import EvaluationRequest
from rl4p.configuration import instantiate
from rl4p.distributed.processes import to_host
from rl4p.loop.evaluation import Answered, Evaluation
from rl4p.model.folder import lasting_name
from rl4p.runs.build import check_lengths, instantiate_phases
from rl4p.runs.evaluation import (
    build_evaluation,
    check_tasks,
    check_term,
    encoder,
    evaluation_sampler,
    held_out_questions,
)
from rl4p.runs.grading import STATUS, grades_of, rows_of_turns
from rl4p.runs.policy import load_policy
from rl4p.runs.sample import Sample

LINK = "rl4p.evaluates"  # tag: the identity of the evaluated run, of its tracker.json


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """The evaluation, the state that it evaluates, and where this comes from.

    Attributes:
      source: {"run", "step", "average"}, or {"model"}; values of JSON.
      dropped: the number of prompts that were too long.
    """

    evaluation: Evaluation
    state: TrainState
    source: dict[str, Any]
    dropped: int


def build_evaluated(config: DictConfig, request: EvaluationRequest) -> Evaluated:
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
    if request.run is None:
        path = config.model.get("path")
        source = {"model": lasting_name(path) if path else config.model._target_}
    else:
        source = {"run": str(request.run.resolve()), "step": step, "average": request.average}
    evaluation = replace(evaluation, of_average=False)  # `request.average` has selected it
    return Evaluated(evaluation=evaluation, state=state, source=source, dropped=dropped)


def identity_of(run: Path) -> str | None:
    """Returns the identity by which trackers know the run, or None if it has none."""
    path = run / "tracker.json"
    saved = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return saved.get("rl4p.run")


def samples_of_chunk(evaluation: Evaluation, answered: Answered) -> list[Sample]:
    """Returns the samples of a chunk; all processes must call this.

    `correct` is None if the term that decides gave no grade: it does not apply, or a grader failed.
    """
    correct_B, judged_B = evaluation.judged(answered.rewards)
    rewards, mask_BT, versions_BT, finish_B = to_host(
        (
            answered.rewards,
            answered.trajectories.response_mask_BT,
            answered.trajectories.policy_version_BT,
            answered.trajectories.finish_B,
        )
    )
    tokens_B = np.sum(mask_BT, axis=1).tolist()
    return [
        Sample.response_to(
            prompt,
            answered.episodes[b].response,
            sample=sample,
            seed=None if sample is None else evaluation.seed,
            status=STATUS[Finish(int(finish_B[b]))],
            length=tokens_B[b],
            turns=rows_of_turns(answered.episodes[b], versions_BT[b][mask_BT[b]]),
            failure=answered.episodes[b].failure,
            correct=correct_B[b] if judged_B[b] else None,
            **vars(grades),
        )
        for b, ((prompt, sample), grades) in enumerate(
            zip(answered.chunk.rows(), grades_of(rewards), strict=True)
        )
    ]
