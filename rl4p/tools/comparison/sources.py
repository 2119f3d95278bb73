"""The runs that the arguments of `rl4p.compare` name, in folders or in an MLflow store.

Of a store no run folder needs to exist. The metrics come from the store; the configuration, the
environment and the samples come from the artifacts that `rl4p.runs.tracker` sends. If the artifacts
cannot be reached, the parameters of the run replace the configuration, and there are no samples.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from rl4p.base.errors import InputError, RunError
from rl4p.base.storage import is_address
from rl4p.command import commands
from rl4p.configuration.yaml_file import read_mapping
from rl4p.runs.folder import LATEST, run_folder
from rl4p.runs.sample import Sample, recorded_samples
from rl4p.runs.tracker.background import reason
from rl4p.runs.tracker.mirror import IDENTITY, STATUS, SWEEP, is_size, mlflow_key
from rl4p.runs.tracker.mlflow import SQLITE, URI, MLflow
from rl4p.tools.comparison.measures import LAST, PASS_AT_1, RECORDED, Value, refuse_unrecorded
from rl4p.tools.comparison.runs import (
    WRONG_FILE,
    LeftOut,
    Run,
    Unusable,
    check_finished,
    check_training,
    read_folders,
    unreadable,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient


RUNS_PER_PAGE = 500
FILES = ("config.yaml", "environment.json", "samples.jsonl")


def read_experiment(
    experiment: str, uri: str | None, metric: str | None = None
) -> tuple[list[Run], list[LeftOut]]:
    """Returns the finished runs of an MLflow experiment, oldest first, and the other ones.

    Args:
      experiment: the name of the experiment.
      uri: the store, as `tracker.uri`; None is MLFLOW_TRACKING_URI.
      metric: a metric to read beside the metrics of every comparison.

    Raises:
      InputError: the store has no such experiment, or no run in it.
      RunError: the store cannot be read.
    """
    store = MLflow(uri=uri)  # refuses a wrong one
    uri = str(store.uri)
    if uri.startswith(SQLITE) and not Path(uri.removeprefix(SQLITE)).is_file():
        raise InputError(f"tracker.uri={uri} does not exist.")  # MLflow would create it
    runs, left_out, count, recorded = [], [], 0, set[str]()
    try:
        client = store.client()
        for run in _runs(client, experiment, uri):
            count += 1
            recorded |= run.data.metrics.keys()
            name = f"{run.info.run_name} ({run.info.run_id})"
            try:
                runs.append(_read(client, run, name, metric))
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


def _runs(client: "MlflowClient", experiment: str, uri: str) -> Iterator[Any]:
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


def _read(client: "MlflowClient", run: Any, name: str, metric: str | None) -> Run:
    """Returns a run.

    Raises:
      Unusable: it is an evaluation or did not finish, or a file of it cannot be read.
    """
    check_training(run.data.tags.get("kind"))
    wanted = {
        key: key for key in sorted(run.data.metrics) if key in RECORDED or key.endswith(PASS_AT_1)
    }
    if metric is not None and mlflow_key(metric) in run.data.metrics:
        wanted[mlflow_key(metric)] = metric
    by_step: dict[int, dict[str, float]] = {}
    for key, name_of_metric in wanted.items():
        for point in client.get_metric_history(run.info.run_id, key):
            by_step.setdefault(point.step, {"step": point.step})[name_of_metric] = point.value
    for key, value in run.data.tags.items():
        if is_size(key) and by_step:  # a tag, because it never changes
            by_step[min(by_step)][key] = float(value)
    rows = [by_step[step] for step in sorted(by_step)]
    statuses = {shown: status for status, shown in STATUS.items()}
    check_finished(run.data.tags.get("status") or statuses.get(run.info.status), rows)
    try:
        with tempfile.TemporaryDirectory() as folder:
            config, environment, samples = _files(client, run, Path(folder))
        return Run(
            name=name,
            seed=int(config.get("seed", 0)),
            config=config,
            overrides=environment.get("overrides") or (),
            rows=rows,
            samples=samples,
            devices=int(environment.get("devices") or run.data.tags.get("devices") or 1),
        )
    except WRONG_FILE as error:
        raise unreadable(error) from error


def _files(
    client: "MlflowClient", run: Any, folder: Path
) -> tuple[dict[str, Any], dict[str, Any], list[Sample]]:
    """Returns the configuration, the environment and the samples from the run's artifacts."""
    from mlflow.exceptions import MlflowException

    try:
        there = {file.path for file in client.list_artifacts(run.info.run_id)}
        for name in FILES:
            if name in there:
                client.download_artifacts(run.info.run_id, name, str(folder))
    except (MlflowException, OSError):  # another machine's disk, or storage without credentials
        pass
    config, environment = folder / "config.yaml", folder / "environment.json"
    return (
        read_mapping(config) if config.exists() else _numbers(run.data.params),
        json.loads(environment.read_text("utf-8")) if environment.exists() else {},
        recorded_samples(folder / "samples.jsonl"),
    )


def _numbers(parameters: dict[str, str]) -> dict[str, Any]:
    """Returns parameters with their numbers; the name "optimizer.learning_rate" stays one key."""
    return {name: yaml.safe_load(value) for name, value in parameters.items()}


FOLDER = "compare"  # in the folder of the sweep, or in `out`
SWEEP_FILE = "multirun.yaml"  # Hydra writes it into the folder of a sweep


@dataclass(frozen=True, kw_only=True)
class Store:
    """A tracking store of MLflow.

    Attributes:
      name: the tracker of the store.
      uri: its address.
    """

    name: Literal["mlflow"] = "mlflow"
    uri: str


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """The words of the command.

    Attributes:
      run: the folders of runs or of sweeps.
      experiment: an MLflow experiment, instead of folders.
      tracker: the store of the experiment; None is MLFLOW_TRACKING_URI.
      metric: the metric to compare.
      value: the number of a run that counts: `last`, `last_K` or `area`.
      out: the folder for the files.
    """

    run: commands.SEVERAL = ()
    experiment: str | None = None
    tracker: Store | None = None
    metric: str | None = None
    value: str = LAST.name
    out: str | None = None

    def __post_init__(self) -> None:
        Value(self.value)  # refuses another one
        named = self.experiment is not None
        without_store = named and self.tracker is None and not os.environ.get(URI)
        if without_store or bool(self.run) == named or (self.tracker is not None and not named):
            raise InputError("Give run=FOLDER, or experiment=NAME tracker.uri=URI; see --help.")


def read_options(arguments: Sequence[str]) -> CompareOptions:
    """Returns the options of a command line.

    Raises:
      InputError: there is not exactly one source of runs, or a word is unknown.
    """
    return commands.read(arguments, CompareOptions, "compare", sections={"tracker": Store}).options


def read(options: CompareOptions) -> tuple[list[Run], list[LeftOut], Path]:
    """Returns the finished runs, the other ones, and the folder for the files.

    The folder is `compare` in `out`, or else in the folder of the sweep, or else in a new folder
    below outputs/comparisons.

    Raises:
      InputError: there are no such runs.
      RunError: MLflow cannot be read.
    """
    now = datetime.now()
    out = Path("outputs", "comparisons", f"{now:%Y-%m-%d}", f"{now:%H-%M-%S}")
    if options.experiment is not None:
        uri = None if options.tracker is None else options.tracker.uri
        runs, left_out = read_experiment(options.experiment, uri, options.metric)
    else:
        places = [
            run_folder(name) if name == LATEST or is_address(name) else Path(name)
            for name in options.run
        ]
        runs, left_out = read_folders(places)
        out = sweep_of(places) or out
    return runs, left_out, Path(options.out or out).expanduser() / FOLDER


def sweep_of(places: Sequence[Path]) -> Path | None:
    """Returns the folder of the sweep whose runs these are; None if they are of no single sweep."""
    places = [place.expanduser() for place in places]
    if len(places) == 1 and places[0].is_dir() and not (places[0] / "config.yaml").exists():
        return places[0]
    parents = {place.parent for place in places}
    common = next(iter(parents))
    return common if len(parents) == 1 and (common / SWEEP_FILE).exists() else None
