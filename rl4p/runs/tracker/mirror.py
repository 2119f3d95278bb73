"""A mirror of a run folder in MLflow. It may be repeated: metrics are not sent twice.

MLflow has no model flavour for Flax. The policy is registered as the folder that `rl4p.export`
writes, in Hugging Face format; ``mlflow.artifacts.download_artifacts("models:/NAME/1")`` reads it.
"""

import getpass
import hashlib
import json
import re
import uuid
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rl4p.base.errors import RunError
from rl4p.protocols.hook import Mirror
from rl4p.runs.folder import run_on_cpu
from rl4p.runs.record import Record, replace_file
from rl4p.runs.saved_steps import steps_of
from rl4p.runs.tracker.background import TimedSteps
from rl4p.runs.tracker.description import Description
from rl4p.runs.tracker.view import ALL_RUNS, PARAMETERS, page, share_view, view, where_to_look

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Run


STEP = "rl4p.step"  # tag of a version


def register_policy(
    client: "MlflowClient", run_id: str, folder: Path, name: str, trusted: tuple[str, ...]
) -> None:
    """Registers the policy of the newest checkpoint, unless the store has this version.

    Another process exports it, so that this one needs no second copy of the policy.
    """
    from mlflow.exceptions import MlflowException

    steps = steps_of(folder / "checkpoints")
    if not steps:
        raise RunError(f"{folder} has no checkpoint, so tracker.register={name} has no effect")
    step = str(steps[-1])
    versions = client.search_model_versions(f"run_id = '{run_id}'")
    if any(version.name == name and version.tags.get(STEP) == step for version in versions):
        return
    place = f"policy/{step}"
    with TemporaryDirectory(dir=folder) as temporary:
        out = Path(temporary) / "policy"
        try:
            run_on_cpu("export", [f"run={folder}", f"out={out}", f"step={step}"], trusted)
        except RunError as error:
            raise RunError(f"{folder} could not be exported: {error}") from error
        client.log_artifacts(run_id, str(out), place)
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    summary = Record(folder).summary() or {}
    evaluation = (summary.get("evaluation") or {}).get("last") or {}
    scores = [f"{name} = {float(value):.4g}" for name, value in evaluation.items()]
    client.create_model_version(
        name,
        f"{client.get_run(run_id).info.artifact_uri}/{place}",
        run_id,
        tags={STEP: step, "params_sha256": str(summary.get("params_sha256"))},
        description="; ".join([f"{folder} after step {step}", *scores]),
    )
    client.set_tag(run_id, "registered", name)


IDENTITY = "rl4p.run"  # tag: identifies the run in every store; tracker.json holds its value
SWEEP = "sweep"  # tag: the overrides of a sweep, whose run is the parent of its jobs
SENT = "rl4p.sent"  # tag: metrics up to this step are in the store
PARENT = "mlflow.parentRunId"  # tag of MLflow, like the next ones
COMMIT = "mlflow.source.git.commit"
NOTE = "mlflow.note.content"
STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
METRICS_PER_BATCH, PARAMS_PER_BATCH, LONGEST_KEY = 1000, 100, 250  # limits of MLflow
WRONG_LETTER = r"[^\w. :-]"
WRONG_FOLDER = r"[#%\\]| [0-9a-f]{8}$"  # MLflow refuses # and \, and reads %41 as A
WRONG_PART = rf"{WRONG_LETTER}|^\.\.| [0-9a-f]{{8}}$"  # the last is the form of a changed part
FIRST_FILES = ("config.yaml", "environment.json")
LAST_FILES = (*FIRST_FILES, "samples.jsonl", "summary.json", "plots/*")
LAST_FILES += ("evaluation*.json", "responses*.jsonl", "evaluation/**/*.json*")

TABLE = "samples.json"
ROWS_OF_TABLE = 1000  # the newest samples


class MLflowMirror(Mirror):
    """A run folder and its run in MLflow. Every call waits for the store and raises its errors.

    * After an error, create a new mirror. It reads from the store which steps were sent.
    * A tag identifies the run in the store, not the run's id. This also finds a run whose creation
      was answered too late, and creates a deleted run again.
    * The time of a metric depends on the record alone (`TimedSteps`). MLflow stores metrics of
      equal step, time and value once, so a batch that is sent twice has no effect.
    """

    def __init__(
        self,
        client: "MlflowClient",
        experiment_id: str,
        folder: Path,
        parent: str | None = None,
        *,
        system_metrics: bool = False,
        upload_checkpoints: bool = False,
        register: str | None = None,
        trusted: tuple[str, ...] = (),
    ):
        """Finds or creates the run, with its parameters, tags and data sets.

        Args:
          folder: the folder of the run, after `Record.describe` was called.
          system_metrics: whether to measure the machine until the mirror is closed.
          upload_checkpoints, register: what `upload` sends, as in `mlflow.MLflow`.
        """
        from mlflow.entities import Param, RunTag

        self._client = client
        self._folder = folder.resolve()
        self._record = Record(self._folder)
        self._uploads = upload_checkpoints, register, trusted
        self._experiment, self._parent = experiment_id, parent
        description = Description(self._folder)
        identity = identity_of(self._folder)
        run = find_run(client, experiment_id, identity) or client.create_run(
            experiment_id,
            start_time=int(1000 * description.started),
            run_name=description.name,
            tags=source_tags() | {IDENTITY: identity, NOTE: f"`{description.command}`"},
        )
        self._id = run.info.run_id
        self._sent = int(run.data.tags.get(SENT, -1))
        self._steps = TimedSteps(self._folder, run.info.start_time)
        client.update_run(self._id, status="RUNNING")

        flat = description.environment.items()
        tags = {mlflow_key(k): str(v) for k, v in flat if isinstance(v, str | int | float)}
        tags |= {"folder": str(self._folder), "command": description.command}
        if "git_commit" in tags:
            tags[COMMIT] = tags["git_commit"]
        if parent:
            tags[PARENT] = parent
        client.log_batch(self._id, tags=[RunTag(k, v[:8000]) for k, v in tags.items()])
        # MLflow cannot change a parameter; config.yaml shows the new value of a resumed run.
        parameters = {mlflow_key(k): v[:6000] for k, v in description.parameters.items()}
        new = [Param(k, v) for k, v in parameters.items() if k not in run.data.params]
        for start in range(0, len(new), PARAMS_PER_BATCH):
            client.log_batch(self._id, params=new[start : start + PARAMS_PER_BATCH])
        if not (run.inputs and run.inputs.dataset_inputs):
            client.log_inputs(self._id, data_set_inputs(description))
        self.send_files(*FIRST_FILES)
        self._monitor = None
        if system_metrics:  # a thread of MLflow
            from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

            uri = client.tracking_uri
            self._monitor = SystemMetricsMonitor(self._id, resume_logging=True, tracking_uri=uri)
            self._monitor.start()

    def send_metrics(self) -> None:
        """Sends the new lines of the record."""
        from mlflow.entities import Metric, RunTag

        rows = [each for each in self._steps.new() if each[0] > self._sent]
        metrics = [
            Metric(mlflow_key(name), value, int(time), step)
            for step, time, row in rows
            for name, value in row.items()
            if not is_size(name)
        ]
        sizes = {name: value for _, _, row in rows for name, value in row.items() if is_size(name)}
        for name, value in sizes.items():
            self._client.set_tag(self._id, mlflow_key(name), f"{value:g}")
        for start in range(0, len(metrics), METRICS_PER_BATCH):
            batch = metrics[start : start + METRICS_PER_BATCH]
            # The last step of a full batch may continue in the next batch.
            self._sent = batch[-1].step - (start + METRICS_PER_BATCH < len(metrics))
            self._client.log_batch(self._id, batch, tags=[RunTag(SENT, str(self._sent))])

    def send_files(self, *patterns: str) -> None:
        """Sends the files of the run folder that match, with their relative paths."""
        for pattern in patterns:
            for path in sorted(self._folder.glob(pattern)):
                parts = path.relative_to(self._folder).parent.parts
                place = "/".join(
                    marked(part, part) if re.search(WRONG_FOLDER, part) else part for part in parts
                )
                self._client.log_artifact(self._id, str(path), place or None)

    def close(self, status: str) -> None:
        """Sends the remaining data and the final status."""
        self.send_metrics()
        self.send_files(*LAST_FILES)
        columns, data = self._record.table_of_samples(ROWS_OF_TABLE)
        if data:  # MLflow's `log_table` appends, so a resumed run would repeat its rows
            self._client.log_dict(self._id, {"columns": columns, "data": data}, TABLE)
            shown = json.dumps([{"path": TABLE, "type": "table"}])
            self._client.set_tag(self._id, "mlflow.loggedArtifacts", shown)
        # Where the checkpoints are, which may be gigabytes, instead of the checkpoints.
        place = self._folder / "checkpoints"
        if steps := steps_of(place):
            files = (path for path in (place / str(steps[-1])).rglob("*") if path.is_file())
            size = sum(path.stat().st_size for path in files)
            saved = {"folder": str(place), "steps": steps, "bytes_of_newest": size}
            self._client.log_dict(self._id, saved, "checkpoints.json")
            self._client.set_tag(self._id, "checkpoints", str(place))
        self._client.set_tag(self._id, "status", status)
        if self._parent is None:
            names = self._client.get_run(self._id).data.metrics
            share_view(self._client, self._experiment, ALL_RUNS, view(PARAMETERS, names))
        if self._monitor is not None:
            self._monitor.finish()
        metrics = self._record.metrics_file  # without it MLflow takes the current time
        ended = int(metrics.stat().st_mtime * 1000) if metrics.exists() else None
        self._client.set_terminated(self._id, STATUS.get(status, "KILLED"), ended)

    def where(self) -> str:
        """Returns a sentence with the address of the charts; empty for a job of a sweep."""
        address = page(self._experiment, ALL_RUNS, charts=True)
        return "" if self._parent else where_to_look(str(self._client.tracking_uri), address)

    def upload(self, status: str) -> None:
        """Uploads the newest checkpoint and registers the policy, if these were requested.

        Only the policy of a run that has finished is registered. An evaluation has neither.
        """
        if Description(self._folder).is_evaluation:
            return
        checkpoint, name, trusted = self._uploads
        steps = steps_of(self._folder / "checkpoints")
        if checkpoint and steps:
            place = f"checkpoints/{steps[-1]}"
            if not self._client.list_artifacts(self._id, place):
                self._client.log_artifacts(self._id, str(self._folder / place), place)
        if name is not None and status == "finished":
            register_policy(self._client, self._id, self._folder, name, trusted)

    def abandon(self) -> None:
        if self._monitor is not None:
            self._monitor._shutdown_event.set()  # `finish` would wait for the store


def find_run(client: "MlflowClient", experiment_id: str, identity: str) -> "Run | None":
    """Returns the run with this identity; None if there is none, or if it was deleted."""
    runs = client.search_runs([experiment_id], f"tags.`{IDENTITY}` = '{identity}'")
    return next(iter(runs), None)


def source_tags() -> dict[str, str]:
    """Returns the tags for MLflow's columns "Source" and "User"."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # in a container, a user may have no name
        user = "unknown"
    return {"mlflow.user": user, "mlflow.source.name": "rl4p.train", "mlflow.source.type": "LOCAL"}


def identity_of(folder: Path) -> str:
    path = folder / "tracker.json"
    if not path.exists():
        replace_file(path, json.dumps({IDENTITY: uuid.uuid4().hex}) + "\n")
    return json.loads(path.read_text("utf-8"))[IDENTITY]


def mlflow_key(name: str) -> str:
    """Returns a name of a metric, a parameter or a tag in letters that MLflow takes.

    Different names have different keys. A part between slashes that MLflow takes stays as it is.
    Another part gets _ for each wrong letter and a digest of the part: "a@b" is "a_b 1a2b3c4d". So
    do parts that look like this already, and a whole name that is too long.
    """
    parts = name.split("/")
    for i, part in enumerate(parts):
        if part.strip() != part or part in ("", ".") or re.search(WRONG_PART, part):
            parts[i] = marked(part, part)
    key = "/".join(parts)
    return key if len(key) <= LONGEST_KEY else marked(key[: LONGEST_KEY - 9], name)


def is_size(metric: str) -> bool:
    """Returns whether a metric is the number of prompts of an evaluation, which never changes."""
    return metric.startswith("eval/") and metric.endswith("/prompts")


def marked(readable: str, name: str) -> str:
    """Returns the letters of a text that MLflow takes, with a digest of a name."""
    letters = re.sub(WRONG_LETTER, "_", readable).strip(" .") or "_"
    return f"{letters} {hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def data_set_inputs(description: Description) -> "list[DatasetInput]":
    """Returns the data sets of a run as inputs of its run in MLflow."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    inputs = []
    for each in description.data_sets:
        if each["uri"] is None:
            options = description.options(each["key"])
            kind, source = "code", {"tags": {k: str(v) for k, v in options.items()}}
        else:
            kind, source = "local", {"uri": each["uri"]}
        name, digest, profile = each["name"], each["digest"], {"num_rows": each["rows"]}
        data_set = Dataset(name, digest, kind, json.dumps(source), profile=json.dumps(profile))
        inputs.append(DatasetInput(data_set, [InputTag("mlflow.data.context", each["context"])]))
    return inputs
