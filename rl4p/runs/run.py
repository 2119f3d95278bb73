"""The job of `python -m rl4p.train`: a run in its folder with hooks, signals and a summary."""

import logging
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from rl4p.base.errors import InputError, OutOfTime, RunError, Stopped
from rl4p.base.types import TrainState
from rl4p.configuration import instantiate
from rl4p.configuration.quoting import override
from rl4p.distributed.processes import (
    agreed,
    anywhere,
    before_exit_by_failure,
    first,
    reporting_errors,
)
from rl4p.loop.evaluation import Evaluation
from rl4p.loop.loop import run_hooks, train
from rl4p.loop.stopwatch import clock, compilation, doing, keep_programs
from rl4p.protocols.hook import Hook, OpensHook, TrackedRun
from rl4p.runs.best import best_of
from rl4p.runs.build import Experiment, build
from rl4p.runs.checkpoint import Checkpoints
from rl4p.runs.description import changed_schedules, is_large, unusual_options
from rl4p.runs.diagnosis import Diagnosis, History, loss_note
from rl4p.runs.environment import data_sets, surroundings
from rl4p.runs.folder import only_run_in, record_value, resume_command
from rl4p.runs.grading import RecordSamples
from rl4p.runs.hook import Profiler
from rl4p.runs.outcome import EarlyStop, RunOutcome, early_stop
from rl4p.runs.pictures import plot_collector, plot_learning_curve
from rl4p.runs.progress import ProgressBar, print_summary
from rl4p.runs.record import EVALUATION, TRAINING, Record
from rl4p.runs.remaining_time import RemainingTime, jobs_of_sweep
from rl4p.runs.run_mirror import KEY, run_mirror
from rl4p.runs.saved_steps import steps_of
from rl4p.runs.signals import (
    AT_FORCED_END,
    RunConsole,
    StopRequest,
    Tolerance,
    Tolerated,
    discard_output,
)
from rl4p.runs.tracker.local import NoTracker, SeveralRuns

log = logging.getLogger(__name__)

PLOTS = {plot_learning_curve: "learning_curve.png", plot_collector: "collector.png"}


def run(
    config: DictConfig,
    *,
    check: Callable[[DictConfig], None],
    estimate: Callable[[DictConfig, Evaluation], list[str]],
) -> dict[str, Any]:
    """Runs or resumes an experiment and returns its summary.

    Args:
      check: what `plan.check` calls before the run, to refuse one that does not fit.
      estimate: returns sentences about the memory and the time of a large run.

    Raises:
      InputError, RunError: raised by the parts of the run.
      Stopped: a signal or `stop.before` stopped the run; everything is saved.
    """
    started, compiled = clock(), compilation()
    keep_programs()
    folder = Path(agreed(HydraConfig.get().runtime.output_dir))
    tree: Any = OmegaConf.to_container(config, resolve=True)
    resume = resume_command(folder, tree, HydraConfig.get().runtime.config_sources)

    def last_words() -> str:
        newest = max(steps_of(folder / "checkpoints"), default=None)
        saved = "nothing is saved yet" if newest is None else f"step {newest} is the newest saved"
        return (
            f"Stopped in the middle of a step, which took too long to end: {saved}. Continue with: "
            f"{resume}"
        )

    bar = ProgressBar(
        config.steps,
        max(1, config.steps // 20),
        config.samples.every,
        time=RemainingTime(
            config.steps, config.evaluation.every, jobs_of_sweep(folder, config.steps)
        ),
        quiet=not first(),
    )
    with recorded_in(folder) as record, StopRequest(last_words) as request, bar:
        if config.resume is None and (record.metrics() or steps_of(record.folder / "checkpoints")):
            word = shlex.quote(override("resume", str(folder)))
            raise InputError(f"{folder} already contains a run: continue it with {word}.")
        refuse_what_only_a_plan_reads(config)
        if config.plan.check:
            check(config)
        tracker = instantiate(config.tracker) if first() else NoTracker()
        mirror = run_mirror(config, folder) if first() else None
        with doing("starting", started):
            experiment = build(config)
            recorded = replace(experiment.evaluation, record=record.log_questions)
            experiment = replace(experiment, evaluation=recorded)
        terminal = RunConsole(soft_wrap=True, quiet=not first())
        tolerance = Tolerance()
        with tolerance.of("Printing"):
            terminal.print(f"{folder}\n{experiment.sizes}")
        log.info("%s", experiment.sizes)
        if first() and is_large(experiment.loop.policy, experiment.state.params):
            with tolerance.of("The estimate of memory and time"):
                for sentence in estimate(config, experiment.evaluation):
                    terminal.print(sentence)
        before = describe(experiment, folder, record, resumed=config.resume is not None)
        trackers = {type(tracker).__name__: tracker} | ({} if mirror is None else {KEY: mirror})
        tracked = SeveralRuns(trackers, folder)
        stateful = experiment.loop.stateful | {"evaluation": experiment.evaluation}
        best = best_of(config, experiment.evaluation)
        early = early_stop(config, best)
        early.mirror = mirror
        checkpoints = instantiate(config.checkpoint).open(folder, stateful, best)
        outcome = RunOutcome(record=record, tracked=tracked, state=experiment.state, best=best)
        diagnosis = Diagnosis(config=experiment.config, quiet=not first())

        def results(status: str) -> dict[str, Any]:
            """Returns the content of summary.json."""
            summary = outcome.summary(status, started, compilation().since(compiled))
            summary["warnings"] = diagnosis.end()
            return summary | {"idle_options": list(experiment.idle_options)}

        def fail() -> None:
            """Ends the record of a run whose main thread waits for a process that has failed."""
            changed = outcome.begun or config.resume is None
            try:
                if changed:
                    record.write_summary(results("failed"))
            finally:
                before = (record.summary() or {}).get("status", "stopped")
                tracked.finish("failed" if changed else before)

        status, interrupted = "failed", partial(tracked.finish, "stopped")
        AT_FORCED_END.insert(0, interrupted)  # before the parent run of a sweep ends
        try:
            with (
                before_exit_by_failure(fail),
                closing(experiment.loop.phases),
                closing(experiment.loop.scoring),
                closing(experiment.evaluation.phases),
                closing(experiment.loop.collector),
                checkpoints,
                reporting_errors(),
            ):  # if the last save fails, the run has failed
                run_steps(
                    config,
                    experiment,
                    checkpoints,
                    outcome,
                    diagnosis,
                    request,
                    early,
                    bar,
                    before,
                )
            resumable = outcome.stopped_by in ("signal", "before")
            status = "stopped" if resumable else "finished"
        finally:
            try:
                summary = results(status)
                seconds = summary["seconds"]["total"]
                log.info("%s at step %d after %.0f s.", status, outcome.step, seconds)
                with at_the_end(status):
                    if outcome.begun or config.resume is None:
                        record.write_summary(summary)
                    else:  # the run could not be resumed; its summary stays unchanged
                        status = (record.summary() or {}).get("status", "stopped")
                    if first():
                        rows = record.metrics()
                        for plot, name in PLOTS.items():
                            with tolerance.of(f"The plot {name}"):
                                plot(rows, folder / "plots" / name)
            finally:
                AT_FORCED_END.remove(interrupted)
                with doing("finishing", clock()):
                    tracked.finish(status)
        bar.stop()
        if first():
            with tolerance.of("Printing"):
                print_summary(folder, summary)
                if note := loss_note(History(diagnosis.rows, diagnosis.config)):
                    terminal.print(note)
                sys.stdout.flush()
            if "Printing" in tolerance.failed:
                discard_output()
        if mirror is not None and not mirror.sent:
            raise RunError(
                f"The run is {status}, but {mirror.url} lacks a part of it: send it with {resume}"
            )
        if status == "stopped":
            kind = OutOfTime if outcome.stopped_by == "before" else Stopped
            raise kind(
                f"Stopped after step {outcome.step}, everything is saved. Continue with: {resume}"
            )
        return summary


def describe(
    experiment: Experiment, folder: Path, record: Record, *, resumed: bool
) -> dict[str, Any]:
    """Warns of options, and records the configuration, what it was resolved to, and the machine.

    Returns the configuration of the earlier start of a resumed run, as it was recorded.
    """
    before = record.config()
    unusual = unusual_options(experiment.loop, experiment.state.params, experiment.prompts)
    if first():
        for sentence in (*experiment.idle_options, *unusual):
            log.warning("%s", sentence)
        for key, value in experiment.recorded.items():
            record_value(folder, key, value)
        if resumed:
            newest = max(steps_of(folder / "checkpoints"), default=0)
            record.log_changes(newest, experiment.config)
    of_evaluation = data_sets(experiment.config, EVALUATION, experiment.evaluation.prompts)
    environment = surroundings(experiment.loop.policy.mesh) | {
        "kind": TRAINING,
        "overrides": list(HydraConfig.get().overrides.task),
        "data_sets": data_sets(experiment.config, TRAINING, experiment.prompts) + of_evaluation,
    }
    record.describe(experiment.config, environment)
    return before


def refuse_what_only_a_plan_reads(config: DictConfig) -> None:
    """Refuses the options of `rl4p.plan` that a run would ignore."""
    plan = config.plan
    of_a_plan = {"estimate": False, "search": False, "all_widths": False, "effort": -1.0}
    changed = [f"plan.{name}={plan[name]}" for name, no in of_a_plan.items() if plan[name] != no]
    if changed:
        raise InputError(f"{' '.join(changed)} is only for python -m rl4p.plan: leave it out.")
    if plan.memory_gib is not None and not plan.check:
        raise InputError(f"plan.memory_gib={plan.memory_gib} needs plan.check=true.")


@contextmanager
def at_the_end(status: str) -> Iterator[None]:
    """Makes the errors of writing the results warnings if the run has failed before."""
    try:
        yield
    except (RunError, OSError) as error:
        sentence = error if isinstance(error, RunError) else f"Cannot write the results: {error}."
        if status != "failed":
            raise RunError(str(sentence)) from error
        log.warning("%s", sentence)


@contextmanager
def recorded_in(folder: Path) -> Iterator[Record]:
    """Yields the record of the run. Processes other than the first get a temporary record."""
    if first():
        with only_run_in(folder):
            yield Record(folder)
    else:
        with TemporaryDirectory() as own:
            yield Record(Path(own))


def run_steps(
    config: DictConfig,
    experiment: Experiment,
    checkpoints: Checkpoints,
    outcome: RunOutcome,
    diagnosis: Diagnosis,
    request: StopRequest,
    early: EarlyStop,
    bar: ProgressBar,
    before: Mapping[str, Any],
) -> None:
    """Runs the steps and their hooks from the start or a checkpoint to the end or a stop."""
    record, tracked, samples = outcome.record, outcome.tracked, config.samples
    bar.start()
    with ExitStack() as stack:
        state = first_state(config, experiment, checkpoints, record, tracked)
        loop = experiment.loop
        for sentence in changed_schedules(
            before, experiment.config, loop.optimizer, loop.phases.rollout, int(state.step)
        ):
            log.warning("%s", sentence)
        outcome.begin(state, resumed=config.resume is not None)
        if checkpoints.manager.latest_step() is None:  # not restored, so it was evaluated just now
            outcome.count(record.metrics()[-1])
        if outcome.best is not None:
            outcome.best.begin(agreed(record.metrics() if first() else None))
        bar.begin(outcome.step, record.metrics()[-1] if first() else {})
        diagnosis.rows = record.metrics()
        record_samples = RecordSamples(
            every=samples.every,
            count=samples.count,
            record=record,
            tracked=tracked,
            tokenizer=experiment.loop.policy.tokenizer if samples.tokens else None,
        )
        users = opened(experiment, record.folder, stack)
        hooks: list[Hook] = [
            experiment.evaluation,
            *users,  # before the outcome records the metrics
            Tolerated(record_samples, "Recording samples"),
            outcome,
            bar,
            Tolerated(diagnosis, "The diagnosis"),
            *([outcome.best] if outcome.best is not None else []),
            checkpoints,
        ]
        steps = train(loop, state)
        with ExitStack() as profiled:
            if config.debug.profile:
                traces = record.folder / "profile"
                profiler = Profiler(traces, outcome.step, config.steps)
                hooks.append(profiled.enter_context(closing(profiler)))
            while outcome.step < config.steps:
                stopped = "signal" if anywhere(request.received is not None) else None
                if stopped := stopped or early.reason(checkpoints, outcome.state):
                    outcome.stopped_by = stopped
                    log.info("The run ends after step %d: %s.", outcome.step, stopped)
                    break
                began = clock()
                info = next(steps)
                run_hooks(hooks, info, last=info.step == config.steps)
                early.steps.append(clock() - began)
            else:
                outcome.stopped_by = "steps"
        request.answered()
        with doing("checkpoints", clock()):
            checkpoints.save(outcome.state)  # no other hook, so that a resumed run has equal lines


def opened(experiment: Experiment, folder: Path, stack: ExitStack) -> list[Hook]:
    """Returns the user's hooks; those that are options are opened, and closed with the stack."""
    hooks: list[Hook] = []
    for hook in experiment.hooks:
        if isinstance(hook, OpensHook):
            opened = hook.open(folder, experiment.loop.policy, dict(experiment.config))
            hook = stack.enter_context(closing(opened))
        hooks.append(hook)
    return hooks


def first_state(
    config: DictConfig,
    experiment: Experiment,
    checkpoints: Checkpoints,
    record: Record,
    tracked: TrackedRun,
) -> TrainState:
    """Returns the state of the newest checkpoint, or the initial state after its evaluation."""
    if config.resume is not None and not agreed(may_start_again(record, checkpoints)):
        with doing("restoring", clock()):
            state = checkpoints.restore(experiment.state)
        log.info("The run continues after step %d.", int(state.step))
        if int(state.step) > config.steps:
            raise InputError(
                f"steps={config.steps}, but {config.resume} is already at step {int(state.step)}."
            )
        if first():
            record.refuse_gaps(int(state.step))
        record.truncate_after(int(state.step))
        return state
    record.truncate_after(-1)
    metrics = experiment.evaluation.timed(experiment.state)
    record.log(0, metrics)
    tracked.log(0, metrics)
    return experiment.state


def may_start_again(record: Record, checkpoints: Checkpoints) -> bool:
    """Returns whether a run was killed or failed before its first checkpoint: it starts again.

    An older run without a checkpoint has lost it. Its record must be kept, so it does not restart.
    """
    steps = record.metrics()[-1]["step"] if record.metrics() else 0
    young = checkpoints.every == 0 or steps <= 2 * checkpoints.every  # allows for a slow save
    failed = (record.summary() or {}).get("status", "failed") == "failed"
    return checkpoints.manager.latest_step() is None and failed and young
