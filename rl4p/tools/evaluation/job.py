"""The job of `rl4p.evaluate`: the parameters of a checkpoint or of a model, and the prompts."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import numpy as np
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from rl4p.base.errors import InputError, Stopped
from rl4p.base.types import Finish, TrainState
from rl4p.command.commands import is_document_with
from rl4p.command.evaluation import OF_RUN, EvaluationRequest
from rl4p.configuration import instantiate
from rl4p.distributed.processes import agreed, anywhere, first, to_host
from rl4p.loop.accuracy import metrics_of
from rl4p.loop.evaluation import Answered, Evaluation, PromptChunk, judged
from rl4p.loop.source import digest_of
from rl4p.loop.stopwatch import keep_programs
from rl4p.model.folder import lasting_name
from rl4p.runs.build import instantiate_phases
from rl4p.runs.environment import data_sets, surroundings
from rl4p.runs.evaluation import (
    build_evaluation,
    check_tasks,
    check_term,
    encoder,
    evaluation_sampler,
    held_out_questions,
)
from rl4p.runs.grading import STATUS, grades_of, rows_of_turns
from rl4p.runs.outcome import params_sha256
from rl4p.runs.policy import check_lengths, load_policy
from rl4p.runs.progress import ResponseBar
from rl4p.runs.record import EVALUATION, Record, replace_file
from rl4p.runs.sample import Sample, SampleFile
from rl4p.runs.signals import RunConsole, StopRequest, Tolerance
from rl4p.runs.tracker.local import NoTracker
from rl4p.tools.evaluation.lm_eval import write_lm_eval
from rl4p.tools.evaluation.report import plot_evaluation, print_report, results, scores_of, settings

LINK = "rl4p.evaluates"  # tag: the identity of the evaluated run, of its tracker.json


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """The evaluation, the state that it evaluates, and where this comes from."""

    evaluation: Evaluation
    state: TrainState
    source: dict[str, Any]  # {"run", "step", "average"}, or {"model"}; values of JSON
    dropped: int  # the number of prompts that were too long


def build_evaluated(config: DictConfig, request: EvaluationRequest) -> Evaluated:
    """Builds the evaluation and loads the parameters."""
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


def samples_of_chunk(evaluation: Evaluation, answered: Answered) -> list[Sample]:
    """Returns the samples of a chunk; all processes must call this.

    `correct` is None if the term that decides gave no grade: it does not apply, or a grader failed.
    """
    correct_B, judged_B = judged(answered.rewards, evaluation.term)
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


REQUEST, RESPONSES = "request.json", "responses.jsonl"
# The parts of the configuration that change the numbers by rounding only, or not at all.
MAY_CHANGE = ("mesh", "tracker")


def evaluate(config: DictConfig, request: EvaluationRequest) -> dict[str, Any]:
    """Evaluates a checkpoint or a model, or continues to, and returns the content of the JSON file.

    Raises:
      InputError: parts are incompatible, or `out` holds something else.
      Stopped: a signal stopped the evaluation; its responses so far are saved.
    """
    started = time.perf_counter()
    keep_programs()
    terminal = RunConsole(quiet=not first())
    with responses_in(request.out) as responses, StopRequest() as stop:
        evaluated = build_evaluated(config, request)
        evaluation, described = evaluated.evaluation, description(config, evaluated)
        # In messages, the keys of the configuration stand as on the command line.
        responses.check({k: v for k, v in described.items() if k != "config"} | described["config"])
        begin = agreed(finished(responses, evaluation.chunks()) if first() else None)
        record = Record(responses.path.parent)
        record.describe(used(config), environment(evaluated, request, used(config)))
        tracked = (instantiate(config.tracker) if first() else NoTracker()).open(record.folder)
        status = "failed"
        try:
            with closing(evaluation.phases):
                respond(evaluated, responses, begin, terminal, stop)
            status = "finished"
            report = described | settings(config, evaluation) | {"dropped": evaluated.dropped}
            if first():
                scores = scores_of(responses.samples, evaluation)
                report["tasks"] = results(scores, responses.samples)
                replace_file(record.folder / "evaluation.json", json.dumps(report, indent=2) + "\n")
                seconds = time.perf_counter() - started
                if request.lm_eval:
                    lines = responses.samples
                    write_lm_eval(record.folder, report, lines, evaluation, seconds)
                with Tolerance().of("The plot evaluation.png"):
                    plot_evaluation(report["tasks"], record.folder / "plots" / "evaluation.png")
                step = int(evaluated.state.step)
                metrics = metrics_of(scores) | {"time/evaluation": seconds}
                record.truncate_after(-1)  # these are the only line of the record
                record.log(step, metrics)
                tracked.log(step, metrics)
                for name in ("evaluation.json", RESPONSES, REQUEST):
                    tracked.artifact(record.folder / name)
                print_report(report, terminal)
        except Stopped:
            status = "stopped"
            raise
        finally:
            tracked.finish(status)
    terminal.print(
        f"{request.out}: evaluation.json, responses.jsonl, plots/evaluation.png", soft_wrap=True
    )
    return report


@contextmanager
def responses_in(folder: Path) -> Iterator[SampleFile]:
    """Yields the file of responses, in a temporary folder in processes but the first."""
    request, made = folder / REQUEST, is_document_with("evaluated", "prompts_sha256")
    with ExitStack() as stack:
        if not first():
            folder = Path(stack.enter_context(TemporaryDirectory()))
        elif folder.is_dir() and not (request.is_file() and made(request)):
            # A kill before the first response leaves an empty file.
            others = [x for x in folder.iterdir() if x.name != RESPONSES or x.stat().st_size]
            if others:
                raise InputError(
                    f"out={folder} holds other files: choose an empty folder, or the folder of an "
                    "evaluation to continue."
                )
        yield stack.enter_context(closing(SampleFile(folder / RESPONSES, folder / REQUEST, folder)))


def description(config: DictConfig, evaluated: Evaluated) -> dict[str, Any]:
    """Returns all that determines the numbers, as values of JSON."""
    tasks: dict[str, list[Any]] = {}
    for prompt in evaluated.evaluation.prompts:
        tasks.setdefault(prompt.task, []).append(prompt)
    return {
        "evaluated": evaluated.source | {"params_sha256": params_sha256(evaluated.state.params)},
        "prompts_sha256": {task: digest_of(prompts) for task, prompts in tasks.items()},
        "config": {key: value for key, value in used(config).items() if key not in MAY_CHANGE},
    }


def used(config: DictConfig) -> dict[str, Any]:
    """Returns the resolved parts of the configuration that an evaluation uses."""
    tree: Any = OmegaConf.to_container(config, resolve=True)
    for key in ("every", "loss"):
        del tree["evaluation"][key]
    return {key: tree[key] for key in OF_RUN}


def finished(responses: SampleFile, chunks: Sequence[PromptChunk]) -> int:
    """Returns the number of chunks in the file, after it has removed an incomplete one."""
    present = [(sample.task, sample.id, sample.sample) for sample in responses.samples]
    done = count = 0
    for chunk in chunks:
        wanted = [(prompt.task, prompt.id, sample) for prompt, sample in chunk.rows()]
        part = present[count : count + len(wanted)]
        if part != wanted[: len(part)]:
            raise InputError(
                f"{responses.path} holds responses of another evaluation, or it was changed: "
                "choose another folder with out=FOLDER."
            )
        if len(part) < len(wanted):
            break
        done, count = done + 1, count + len(wanted)
    responses.keep(count)
    return done


def respond(
    evaluated: Evaluated, responses: SampleFile, begin: int, console: Console, stop: StopRequest
) -> None:
    """Samples, grades and writes the remaining chunks, after a sentence on what is evaluated.

    Raises:
      Stopped: a signal stopped it; its responses so far are saved.
    """
    source, evaluation = evaluated.source, evaluated.evaluation
    sizes = [len(chunk.rows()) for chunk in evaluation.chunks()]
    with Tolerance().of("Printing"):
        what = source.get("model") or (
            f"{'the average of ' * source['average']}{source['run']} after step {source['step']}"
        )
        each = f"1 greedy response and {evaluation.samples} samples"
        console.print(
            f"{what}: {len(evaluation.prompts):,} prompts, "
            f"{each if evaluation.samples else 'a greedy response'} to each"
            + f" ({evaluated.dropped:,} dropped for being longer than max_prompt_tokens)"
            * bool(evaluated.dropped)
            + f"; {begin} of {len(sizes)} batches are done" * bool(begin),
            soft_wrap=True,
        )
    with ResponseBar(console, sum(sizes), sum(sizes[:begin])) as bar:
        answered = evaluation.answered(evaluated.state, begin=begin)
        for chunks, each in enumerate(answered, begin + 1):
            samples = samples_of_chunk(evaluation, each)
            if first():
                responses.append(samples)
            done = sum(sizes[:chunks])
            bar.show(done)
            if chunks < len(sizes) and anywhere(stop.received is not None):
                raise Stopped(
                    f"Stopped after {done:,} responses, which are saved. The same command "
                    "continues."
                )


def environment(
    evaluated: Evaluated, request: EvaluationRequest, config: dict[str, Any]
) -> dict[str, Any]:
    """Returns the environment of the evaluation, with the identity of the evaluated run."""
    path = None if request.run is None else request.run / "tracker.json"
    saved = json.loads(path.read_text("utf-8")) if path and path.is_file() else {}
    identity = saved.get("rl4p.run")  # by which trackers know the run
    return {
        "kind": EVALUATION,
        "command": request.command,
        **evaluated.source,
        "data_sets": data_sets(config, EVALUATION, evaluated.evaluation.prompts),
        **({LINK: identity} if identity else {}),
        **surroundings(evaluated.evaluation.policy.mesh),
    }
