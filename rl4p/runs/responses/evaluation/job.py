"""The job of `python -m rl4p.evaluate`: samples, grades, records and reports, in one folder.

    request.json      all that determines the numbers; a changed request is refused in this folder
    responses.jsonl   one line per response (`responses.py`)
    evaluation.json   the scores by task and the settings behind them (`report.py`)
    plots/evaluation.png
    config.yaml, environment.json, metrics.jsonl   the record, which trackers mirror

A killed evaluation continues after its last finished chunk. Its numbers are those of an evaluation
that was not killed, because the chunks and the keys of the samples do not depend on the start.
"""

import importlib.metadata
import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import rl4p
from rl4p.configuration import instantiate
from rl4p.configuration.differences import differences
from rl4p.configuration.evaluation import OF_RUN, Request
from rl4p.configuration.folder import only_run_in
from rl4p.distributed.processes import agreed, anywhere, first
from rl4p.errors import InputError, Stopped
from rl4p.loop.accuracy import metrics_of
from rl4p.loop.compilation import keep_programs
from rl4p.runs.commit import git_state
from rl4p.runs.record import Record, replace_file
from rl4p.runs.responses.evaluation.picture import plot_evaluation
from rl4p.runs.responses.evaluation.report import print_report, results, scores_of, settings
from rl4p.runs.responses.evaluation.responses import Responses, rows_of
from rl4p.runs.responses.evaluation.subject import (
    LINK,
    Subject,
    build_subject,
    identity_of,
    prompts_sha256,
)
from rl4p.runs.run import PACKAGES, params_sha256
from rl4p.runs.signals import StopRequest
from rl4p.runs.tracker import TrackedRun
from rl4p.runs.tracker.none import NoTracker

REQUEST = "request.json"
# The parts of the configuration that change the numbers by rounding only, or not at all.
MAY_CHANGE = ("mesh", "tracker")


def evaluate(config: DictConfig, request: Request) -> dict[str, Any]:
    """Evaluates a checkpoint or a model, or continues to, and returns the content of the JSON file.

    Raises:
      InputError: parts are incompatible, or `out` holds something else.
      Stopped: a signal stopped the evaluation; its responses so far are saved.
    """
    started = time.perf_counter()
    keep_programs()
    console = Console(highlight=False, quiet=not first())
    with written_to(request.out) as out, StopRequest() as stop:
        subject = build_subject(config, request)
        described, evaluation = description(config, subject), subject.evaluation
        responses = Responses(out / "responses.jsonl", evaluation.chunks())
        if next(responses.rows(), None) is None:
            replace_file(out / REQUEST, json.dumps(described, indent=2) + "\n")
        else:
            refuse_other(out / REQUEST, described)
        begin = agreed(responses.finished() if first() else None)
        record = Record(out)
        record.describe(used(config), environment(subject, request))
        tracked = (instantiate(config.tracker) if first() else NoTracker()).open(out)
        status = "failed"
        try:
            console.print(introduction(subject, begin), soft_wrap=True)
            with closing(evaluation.phases):
                answered = respond(subject, responses, begin, console, stop)
            status = "finished" if answered else "stopped"
            if status == "stopped":
                done = sum(1 for _ in responses.rows()) if first() else 0
                raise Stopped(
                    f"Stopped after {done:,} responses, which are saved. The same command "
                    "continues."
                )
            found = described | settings(config, evaluation)
            found["dropped"] = subject.dropped
            if first():
                rows = [row for row, _ in responses.rows()]
                scores = scores_of(rows, evaluation)
                found["tasks"] = results(scores, rows)
                seconds = {"time/evaluation": time.perf_counter() - started}
                save(found, record)
                mirror(int(subject.state.step), metrics_of(scores) | seconds, record, tracked)
                print_report(found, console)
        finally:
            tracked.finish(status)
    console.print(
        f"{request.out}: evaluation.json, responses.jsonl, plots/evaluation.png", soft_wrap=True
    )
    return found


@contextmanager
def written_to(folder: Path) -> Iterator[Path]:
    """Yields the folder for the results, locked; a temporary one in processes but the first.

    Raises:
      InputError: the folder holds something else, or another evaluation uses it.
    """
    if not first():
        with TemporaryDirectory() as own:
            yield Path(own)
        return
    others = [] if not folder.is_dir() else [x for x in folder.iterdir() if x.name != ".lock"]
    if others and not (folder / REQUEST).is_file():
        raise InputError(
            f"out={folder} holds other files: choose an empty folder, or that of an evaluation to "
            "continue."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"out={folder} cannot be created: {error.strerror}.") from error
    with only_run_in(folder):
        yield folder


def description(config: DictConfig, subject: Subject) -> dict[str, Any]:
    """Returns all that determines the numbers, as values of JSON."""
    evaluation = subject.evaluation
    tasks: dict[str, list[Any]] = {}
    for prompt in evaluation.prompts:
        tasks.setdefault(prompt.task, []).append(prompt)
    return {
        "evaluated": subject.source | {"params_sha256": params_sha256(subject.state.params)},
        "prompts_sha256": {task: prompts_sha256(prompts) for task, prompts in tasks.items()},
        "config": {key: value for key, value in used(config).items() if key not in MAY_CHANGE},
    }


def used(config: DictConfig) -> dict[str, Any]:
    """Returns the resolved parts of the configuration that an evaluation uses."""
    tree: Any = OmegaConf.to_container(config, resolve=True)
    del tree["evaluation"]["every"]
    return {key: tree[key] for key in OF_RUN}


def refuse_other(path: Path, wanted: dict[str, Any]) -> None:
    """Compares the description of the evaluation with the one that the folder holds.

    Raises:
      InputError: they differ; the message names the keys.
    """

    def by_key(text: str) -> dict[str, Any]:
        tree = json.loads(text)
        config = tree.pop("config")  # its keys stand in the message as on the command line
        return tree | config

    if changes := differences(by_key(path.read_text()), by_key(json.dumps(wanted)), most=3):
        raise InputError(
            f"out={path.parent} holds another evaluation: {changes}. Choose another folder."
        )


def introduction(subject: Subject, begin: int) -> str:
    """Returns a sentence for the terminal: what is evaluated, on what, and how much is left."""
    source, evaluation = subject.source, subject.evaluation
    what = source.get("model") or (
        f"{'the average of ' * source['average']}{source['run']} after step {source['step']}"
    )
    each = f"1 greedy response and {evaluation.samples} samples"
    chunks = len(evaluation.chunks())
    return (
        f"{what}: {len(evaluation.prompts):,} prompts, "
        f"{each if evaluation.samples else 'a greedy response'} to each"
        + f" ({subject.dropped:,} dropped for being longer than max_prompt_tokens)"
        * bool(subject.dropped)
        + f"; {begin} of {chunks} batches are done" * bool(begin)
    )


def respond(
    subject: Subject, responses: Responses, begin: int, console: Console, stop: StopRequest
) -> bool:
    """Samples, grades and writes the remaining chunks; returns False if a signal stopped it."""
    evaluation = subject.evaluation
    bar = Progress(
        TextColumn("responses"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("batches"),
        TimeRemainingColumn(),
        console=console,
    )
    with bar if console.is_terminal else nullcontext():
        total = len(responses.chunks)
        task = bar.add_task("", total=total, completed=begin)
        for done, answered in enumerate(evaluation.answered(subject.state, begin=begin), begin + 1):
            rows = rows_of(evaluation, answered)
            if first():
                responses.append(rows)
            bar.advance(task)
            if not console.is_terminal and done % max(1, total // 10) == 0:
                console.print(f"{done} of {total} batches")
            if done < total and anywhere(stop.received is not None):
                return False
    return True


def save(found: dict[str, Any], record: Record) -> None:
    """Writes evaluation.json and the picture."""
    replace_file(record.folder / "evaluation.json", json.dumps(found, indent=2) + "\n")
    plot_evaluation(found["tasks"], record.folder / "plots" / "evaluation.png")


def mirror(step: int, metrics: dict[str, float], record: Record, tracked: TrackedRun) -> None:
    """Records the metrics as the only line of the record, and mirrors them and the files."""
    record.truncate_after(-1)
    record.log(step, metrics)
    tracked.log(step, metrics)
    for name in ("evaluation.json", "responses.jsonl", REQUEST):
        tracked.artifact(record.folder / name)


def environment(subject: Subject, request: Request) -> dict[str, Any]:
    """Returns the environment of the evaluation, with the identity of the evaluated run."""
    devices = subject.evaluation.policy.mesh.devices.devices.flatten()
    identity = None if request.run is None else identity_of(request.run)
    return {
        **git_state(Path(__file__).parents[4]),
        "kind": "evaluation",
        "command": request.command,
        **subject.source,
        **({LINK: identity} if identity else {}),
        "device": devices[0].device_kind,
        "devices": len(devices),
        "processes": jax.process_count(),
        "packages": {"rl4p": rl4p.__version__}
        | {name: importlib.metadata.version(name) for name in PACKAGES},
    }
