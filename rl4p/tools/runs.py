"""The runs and evaluations that tools read, from their folders or from an MLflow store.

A run that has not finished, or whose files cannot be read, is left out with the reason.

Evaluations (`rl4p.evaluate`) are read if no training run is given. One has the configuration of the
run that it evaluates, if that is still in its folder, and the step of its checkpoint.

Of a store no run folder needs to exist. The metrics come from the store; the configuration, the
environment and the samples come from the artifacts that `rl4p.runs.tracker` sends. If the artifacts
cannot be reached, the parameters of the run replace the configuration, and there are no samples.
"""

import json
import math
import os
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from rl4p.base.errors import InputError, RunError
from rl4p.configuration.suggestions import metrics_like, write
from rl4p.configuration.yaml_file import read_mapping
from rl4p.data.fields import digest_of_questions
from rl4p.runs.record import EVALUATION, Record
from rl4p.runs.sample import Sample, recorded_samples
from rl4p.runs.tracker.background import reason
from rl4p.runs.tracker.mirror import IDENTITY, STATUS, SWEEP, is_size, mlflow_key
from rl4p.runs.tracker.mlflow import SQLITE, MLflow

if TYPE_CHECKING:
    from mlflow import MlflowClient

MARKS = (".hydra", "config.yaml", "metrics.jsonl")  # a folder with one of these is a run
DEEPEST = 4  # folders between a given folder and its runs
# What readers raise for files that no run wrote.
WRONG_FILE = (InputError, OSError, ValueError, TypeError, AttributeError)
PASS_AT_1 = "/pass_at_1"
DEFAULT_TERM = "correct"


@dataclass(frozen=True, kw_only=True)
class Questions:
    """The questions of a task, and what a policy scored on each of them."""

    digest: str  # of their ids, texts, answers and metadata in their order
    scores: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run, or a finished evaluation."""

    name: str  # the folder of the run, or its name and id in MLflow
    seed: int  # the seed of the run; runs of equal seeds are paired
    config: Mapping[str, Any]  # the resolved configuration
    # The option of each configuration group, as far as it is known.
    choices: Mapping[str, str] = field(default_factory=dict)
    overrides: Sequence[str] = ()  # the overrides on the command line
    rows: Sequence[Mapping[str, float]]  # the metrics of each step, with the key "step"
    samples: Sequence[Sample] = ()  # the samples in samples.jsonl, each with its verdict
    changes: Sequence[Mapping[str, Any]] = ()  # what resuming changed, as `changes.jsonl` has it
    devices: int = 1  # the number of devices that the run used
    # The questions of the last evaluation by the metric that is the mean of their scores.
    questions: Mapping[str, Questions] = field(default_factory=dict)
    evaluation: bool = False  # whether `rl4p.evaluate` made it


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A run that is not read, with the reason as a clause such as "it failed at step 3"."""

    name: str
    reason: str


NO_TRAINING = "it is an evaluation, and no training run"


class Unusable(Exception):
    """The reason why a run cannot be read."""


def read_folders(folders: Iterable[Path]) -> tuple[list[Run], list[LeftOut]]:
    """Returns the finished runs below the folders, and the other ones.

    If there is a training run, evaluations are left out.

    Args:
      folders: folders of runs, of sweeps, or of several sweeps; patterns such as outputs/runs/*.
    """
    runs, left_out = [], []
    for folder in dict.fromkeys(run for given in folders for run in find(given)):
        try:
            runs.append(read(folder))
        except Unusable as why:
            left_out.append(LeftOut(name=str(folder), reason=str(why)))
    if any(not run.evaluation for run in runs):
        left_out += [LeftOut(name=run.name, reason=NO_TRAINING) for run in runs if run.evaluation]
        runs = [run for run in runs if not run.evaluation]
    return runs, left_out


def find(folder: Path) -> list[Path]:
    """Returns the folders of all runs in `folder`, which may be a run itself."""
    folder = folder.expanduser()
    pattern = str(folder.relative_to(folder.anchor))
    matches = [folder] if folder.exists() else list(Path(folder.anchor).glob(pattern))
    if not matches:
        raise InputError(f"{folder} does not exist: give the folder of a sweep or of a run.")
    runs = []
    for match in sorted(matches):
        below = []
        for place, names, files in os.walk(match):
            if set(MARKS) & {*names, *files}:
                names.clear()  # a run has no runs in it
                below.append(Path(place))
            elif len(Path(place).relative_to(match).parts) >= DEEPEST:
                names.clear()
        # Job 10 of a sweep comes after job 9.
        runs += sorted(
            below,
            key=lambda run: [(int(part) if part.isdecimal() else -1, part) for part in run.parts],
        )
    if not runs:
        raise InputError(
            f"{folder} has no run: the folder of a run has a config.yaml and a metrics.jsonl."
        )
    return runs


def read(folder: Path) -> Run:
    """Returns the run or the evaluation in a folder.

    Raises:
      Unusable: it did not finish, or one of its files cannot be read.
    """
    record, config_file = Record(folder), folder / "config.yaml"
    try:
        last_line = ""  # of the job's log: the error that ended it
        for log in folder.glob("*.log"):
            lines = [line.strip() for line in log.read_text(errors="replace").split("\n")]
            if said := [line for line in lines if line]:
                last_line = f" ({said[-1][:200]})"
                break
        if not config_file.is_file():
            raise Unusable("it ended before its first step" + last_line)
        config, environment = read_mapping(config_file), _json(folder / "environment.json")
        if environment.get("kind") == EVALUATION:
            return _read_evaluation(folder, config, environment)
        summary, rows = record.summary(), record.metrics()
        kind, status = environment.get("kind"), summary and summary.get("status")
        _check_finished_training(kind, status, rows, last_line)
        return Run(
            name=str(folder),
            seed=int(config.get("seed", 0)),
            config=config,
            choices=_choices(folder),
            overrides=environment.get("overrides") or (),
            rows=rows,
            samples=_judged_samples(record.samples_file, config),
            changes=record.changes(),
            devices=int(environment.get("devices") or 1),
            questions=_recorded_questions(record),
        )
    except WRONG_FILE as error:
        raise _unreadable(error) from error


def _choices(folder: Path) -> dict[str, str]:
    """Returns the option of each group of a run, as Hydra recorded them."""
    file = folder / ".hydra" / "hydra.yaml"
    hydra = read_mapping(file).get("hydra") if file.is_file() else None
    return ((hydra or {}).get("runtime") or {}).get("choices") or {}


def _recorded_questions(record: Record) -> dict[str, Questions]:
    """Returns the questions of the last evaluation of a training run; older runs have none."""
    questions = {}
    for row in record.questions():
        for name in row.keys() - {"step", "task", "questions"}:
            scores = tuple(map(float, row[name]))
            key = f"eval/{row['task']}/{name}"
            questions[key] = Questions(digest=row["questions"], scores=scores)
    return questions


def _read_evaluation(
    folder: Path, config: Mapping[str, Any], environment: Mapping[str, Any]
) -> Run:
    """Returns a finished evaluation, by its own configuration and that of the run it evaluates."""
    rows, report = Record(folder).metrics(), folder / "evaluation.json"
    if not rows or not report.is_file():
        raise Unusable("it is an evaluation that has not ended")
    source = {key: environment.get(key) for key in ("run", "step", "average")}
    choices, overrides, trained = {}, environment.get("overrides") or (), {}
    if source["run"] is not None:
        run = Path(source["run"])
        if (run / "config.yaml").is_file():
            trained, source["run"] = read_mapping(run / "config.yaml"), None
            # The evaluation may have other options of the groups that it uses.
            choices = {
                key: option
                for key, option in _choices(run).items()
                if key.partition("/")[0].partition("@")[0] not in config
            }
            overrides = _json(run / "environment.json").get("overrides") or ()
    evaluated = {key: value for key, value in source.items() if value is not None}
    return Run(
        name=str(folder),
        seed=int(config.get("seed", 0)),
        config={**trained, **config, "evaluated": evaluated},
        choices=choices,
        overrides=overrides,
        rows=rows,
        devices=int(environment.get("devices") or 1),
        questions=_answered_questions(recorded_samples(folder / "responses.jsonl")),
        evaluation=True,
    )


def _answered_questions(samples: Iterable[Sample]) -> dict[str, Questions]:
    """Returns the questions of an evaluation; a response that could not be graded is wrong."""
    asked: dict[str, dict[str | None, Sample]] = {}
    right: dict[str, dict[str | None, list[bool]]] = {}
    greedy: dict[str, list[tuple[Sample, bool]]] = {}
    for sample in samples:
        task = sample.task or ""
        if sample.sample is None:
            greedy.setdefault(task, []).append((sample, bool(sample.correct)))
        else:
            asked.setdefault(task, {}).setdefault(sample.id, sample)
            right.setdefault(task, {}).setdefault(sample.id, []).append(bool(sample.correct))
    questions = {
        f"eval/{task}/pass_at_1": Questions(
            digest=_digest(sample for sample, _ in answers),
            scores=tuple(float(correct) for _, correct in answers),
        )
        for task, answers in greedy.items()
    }
    for task, answers in right.items():
        count = max(map(len, answers.values()))
        questions[f"eval/{task}/avg_at_{count}"] = Questions(
            digest=_digest(asked[task].values()),
            scores=tuple(sum(each) / len(each) for each in answers.values()),
        )
    return questions


def _digest(samples: Iterable[Sample]) -> str:
    return digest_of_questions((x.id, x.prompt, x.answer, x.metadata) for x in samples)


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}


def _unreadable(error: Exception) -> Unusable:
    return Unusable(f"its files cannot be read ({' '.join(str(error).split())[:200]})")


def _check_finished_training(
    kind: str | None, status: Any, rows: Sequence[Mapping[str, float]], error: str = ""
) -> None:
    """Refuses an evaluation, whose one step is no training, and a run that did not finish."""
    if kind == EVALUATION:
        raise Unusable(NO_TRAINING)
    step = int(rows[-1]["step"]) if rows else 0
    if status is None:
        raise Unusable(f"it is still running or was killed, at step {step}")
    if status != "finished":
        raise Unusable(f"it {'was ' * (status == 'stopped')}{status} at step {step}{error}")
    if not rows:
        raise Unusable("it has no metrics")


def deciding_term(config: Mapping[str, Any]) -> str:
    """Returns the `evaluation.term` of a configuration, or the default."""
    evaluation = config.get("evaluation")
    return evaluation.get("term", DEFAULT_TERM) if isinstance(evaluation, dict) else DEFAULT_TERM


def judged(sample: Sample, term: str) -> Sample:
    """Returns a sample that is correct if the grade of a term is at least 1; None without one."""
    grade = sample.terms.get(term)
    if sample.valid is False or grade is None or math.isnan(grade):
        return replace(sample, correct=None)
    return replace(sample, correct=grade >= 1)


def _judged_samples(path: Path, config: Mapping[str, Any]) -> list[Sample]:
    term = deciding_term(config)
    return [judged(sample, term) for sample in recorded_samples(path)]


RUNS_PER_PAGE = 500
FILES = ("config.yaml", "environment.json", "samples.jsonl")


def read_experiment(
    experiment: str, uri: str | None, names: Collection[str], metric: str | None = None
) -> tuple[list[Run], list[LeftOut]]:
    """Returns the finished runs of an MLflow experiment, oldest first, and the other ones.

    Args:
      uri: the store, as `tracker.uri`; None is MLFLOW_TRACKING_URI.
      names: the metrics to read, beside pass@1 of every task.
      metric: a further metric to read, which a run must have.
    """
    store = MLflow(uri=uri)  # refuses a wrong one
    uri = str(store.uri)
    if uri.startswith(SQLITE) and not Path(uri.removeprefix(SQLITE)).is_file():
        raise InputError(f"tracker.uri={uri} does not exist.")  # MLflow would create it
    runs, left_out, count, recorded = [], [], 0, set[str]()
    try:
        client = store.client()
        for run in _stored_runs(client, experiment, uri):
            count += 1
            recorded |= run.data.metrics.keys()
            name = f"{run.info.run_name} ({run.info.run_id})"
            try:
                runs.append(_read_stored(client, run, name, names, metric))
            except Unusable as why:
                left_out.append(LeftOut(name=name, reason=str(why)))
    except InputError:
        raise
    except Exception as error:
        raise RunError(f"MLflow at {uri} cannot be read: {reason(error)}") from error
    if not count:
        raise InputError(f"experiment={experiment} in {uri} has no run of rl4p.train.")
    if metric is not None and mlflow_key(metric) not in recorded:
        refuse_unrecorded(metric, recorded)
    return runs, left_out


def _stored_runs(client: "MlflowClient", experiment: str, uri: str) -> Iterator[Any]:
    """Yields the runs that rl4p mirrored, oldest first. The parents of sweeps are none."""
    stored = client.get_experiment_by_name(experiment)
    if stored is None:
        names = [each.name for each in client.search_experiments(max_results=20)]
        raise InputError(f"experiment={experiment} is not in {uri}, which has {', '.join(names)}.")
    token = None
    while True:
        page = client.search_runs(
            [stored.experiment_id],
            order_by=["attributes.start_time ASC"],
            max_results=RUNS_PER_PAGE,
            page_token=token,
        )
        tagged = ((run, run.data.tags) for run in page)
        yield from (run for run, tags in tagged if IDENTITY in tags and SWEEP not in tags)
        token = page.token
        if not token:
            return


def _read_stored(
    client: "MlflowClient", run: Any, name: str, names: Collection[str], metric: str | None
) -> Run:
    """Returns a run of a store.

    Raises:
      Unusable: it is an evaluation or did not finish, or a file of it cannot be read.
    """
    from mlflow.exceptions import MlflowException

    run_id, tags = run.info.run_id, run.data.tags
    if tags.get("kind") == EVALUATION:
        _check_finished_training(EVALUATION, None, ())  # before its metrics are asked for
    wanted = {
        key: key for key in sorted(run.data.metrics) if key in names or key.endswith(PASS_AT_1)
    }
    if metric is not None and mlflow_key(metric) in run.data.metrics:
        wanted[mlflow_key(metric)] = metric
    by_step: dict[int, dict[str, float]] = {}
    for key, name_of_metric in wanted.items():
        for point in client.get_metric_history(run_id, key):
            row = by_step.setdefault(point.step, {"step": point.step})
            # The SQL stores of MLflow keep the largest double in the place of infinity.
            value = point.value
            if abs(value) >= sys.float_info.max:
                value = math.copysign(math.inf, value)
            row[name_of_metric] = value
    for key, value in tags.items():
        if is_size(key) and by_step:  # a tag, because it never changes
            by_step[min(by_step)][key] = float(value)
    rows = [by_step[step] for step in sorted(by_step)]
    statuses = {shown: status for status, shown in STATUS.items()}
    status = tags.get("status") or statuses.get(run.info.status)
    _check_finished_training(tags.get("kind"), status, rows)
    try:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            # Artifacts may be on another machine's disk, or in storage without credentials.
            with suppress(MlflowException, OSError):
                there = {file.path for file in client.list_artifacts(run_id)}
                for file in FILES:
                    if file in there:
                        client.download_artifacts(run_id, file, str(folder))
            if (folder / "config.yaml").exists():
                config = read_mapping(folder / "config.yaml")
            else:  # the name "optimizer.learning_rate" stays one key
                config = {key: yaml.safe_load(value) for key, value in run.data.params.items()}
            environment = _json(folder / "environment.json")
            samples = _judged_samples(folder / "samples.jsonl", config)
        return Run(
            name=name,
            seed=int(config.get("seed", 0)),
            config=config,
            overrides=environment.get("overrides") or (),
            rows=rows,
            samples=samples,
            devices=int(environment.get("devices") or tags.get("devices") or 1),
        )
    except WRONG_FILE as error:
        raise _unreadable(error) from error


def refuse_unrecorded(name: str, recorded: Collection[str]) -> None:
    """Refuses a metric that no run has recorded."""
    if name in recorded:
        return
    problem = f"metric={name} is in none of the runs"
    if near := metrics_like(name, recorded):
        raise InputError(write(problem, *([f"metric={key}"] for key in near)))
    raise InputError(f"{problem}; they have {', '.join(sorted(recorded)[:40]) or 'no metrics'}.")
