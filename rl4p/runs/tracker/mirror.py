"""A mirror of a run folder in MLflow. It may be repeated: metrics are not sent twice."""

import json
import posixpath
import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from rl4p.runs.record import Record, replace_file

if TYPE_CHECKING:
    from mlflow import MlflowClient

IDENTITY = "rl4p.run"  # tag: identifies the run in every store; tracker.json holds its value
SENT = "rl4p.sent"  # tag: metrics up to this step are in the store
PARENT = "mlflow.parentRunId"  # tag of MLflow, like COMMIT
COMMIT = "mlflow.source.git.commit"
STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
METRICS_PER_BATCH = 1000  # the limit of MLflow
FIRST_FILES = ("config.yaml", "environment.json")
LAST_FILES = (*FIRST_FILES, "samples.jsonl", "summary.json", "plots/*")

TABLE = "samples.json"
ROWS_OF_TABLE = 1000  # the newest samples
APART = ("terms", "tokens")  # no columns: terms have one each, and lists of tokens are too long

# The parameters that MLflow's compare view shows, in addition to the overrides.
ROOT_KEYS = ("seed", "steps", "prompts_per_step", "group_size")
ROOT_KEYS += ("max_prompt_tokens", "max_response_tokens")
GROUPS = ("rollout", "reward", "advantage", "update", "collector", "model", "data", "optimizer")
OPTIONS = ("model.path", "data.path", "optimizer.learning_rate")


class Mirror:
    """A run folder and its run in MLflow. Every call waits for the store and raises its errors.

    * After an error, create a new mirror. It reads from the store which steps were sent.
    * A tag identifies the run in the store, not the run's id. This also finds a run whose creation
      was answered too late, and creates a deleted run again.
    * The time of a metric is the start of the run plus the ``time/step`` of all steps so far. It
      depends on the record alone. MLflow stores metrics of equal step, time and value once, so a
      batch that is sent twice has no effect.
    """

    def __init__(
        self, client: "MlflowClient", experiment_id: str, folder: Path, parent: str | None = None
    ):
        """Finds or creates the run, with its parameters and tags.

        Args:
          client: a client of the store.
          experiment_id: the experiment of the run in the store.
          folder: the folder of the run, after `Record.describe` was called.
          parent: the id of the sweep's run in the store.
        """
        from mlflow.entities import Param, RunTag

        self._client = client
        self._folder = folder.resolve()
        self._record = Record(self._folder)
        identity = _identity(self._folder)
        found = client.search_runs([experiment_id], f"tags.`{IDENTITY}` = '{identity}'")
        run = next(iter(found), None) or client.create_run(
            experiment_id,
            start_time=_modified(self._folder / "config.yaml"),
            run_name=run_name(self._folder),
            tags={IDENTITY: identity},
        )
        self._id = run.info.run_id
        self._sent = int(run.data.tags.get(SENT, -1))
        self._milliseconds = float(run.info.start_time)
        self._offset = 0  # in metrics.jsonl
        client.update_run(self._id, status="RUNNING")
        tags = _tags(self._folder) | ({PARENT: parent} if parent else {})
        # MLflow cannot change a parameter; config.yaml shows the new value of a resumed run.
        parameters = [
            Param(k, v) for k, v in _parameters(self._folder).items() if k not in run.data.params
        ]
        client.log_batch(
            self._id, params=parameters[:100], tags=[RunTag(k, v[:8000]) for k, v in tags.items()]
        )
        self.send_files(*FIRST_FILES)

    def send_metrics(self) -> None:
        """Sends the new lines of the record."""
        from mlflow.entities import Metric, RunTag

        rows, self._offset = self._record.metrics_from(self._offset)
        metrics = []
        for row in rows:
            self._milliseconds += 1000 * row.get("time/step", 0.0)
            if (step := row.pop("step")) > self._sent:
                time = int(self._milliseconds)
                metrics += [Metric(_key(name), value, time, step) for name, value in row.items()]
        for start in range(0, len(metrics), METRICS_PER_BATCH):
            batch = metrics[start : start + METRICS_PER_BATCH]
            # The last step of a full batch may continue in the next batch.
            self._sent = batch[-1].step - (start + METRICS_PER_BATCH < len(metrics))
            self._client.log_batch(self._id, batch, tags=[RunTag(SENT, str(self._sent))])

    def send_files(self, *patterns: str) -> None:
        """Sends the files of the run folder that match, with their relative paths."""
        for pattern in patterns:
            for path in sorted(self._folder.glob(pattern)):
                place = path.relative_to(self._folder).parent.as_posix()
                self._client.log_artifact(self._id, str(path), None if place == "." else place)

    def send_table(self) -> None:
        """Sends the samples as a table for MLflow's views.

        MLflow's `log_table` is not used: it appends, so a resumed run would repeat its rows.
        """
        rows = [
            sample | sample.pop("terms", {}) for sample in self._record.samples()[-ROWS_OF_TABLE:]
        ]
        if not rows:
            return
        columns = list(dict.fromkeys(name for row in rows for name in row if name not in APART))
        data = [[row.get(name) for name in columns] for row in rows]
        self._client.log_dict(self._id, {"columns": columns, "data": data}, TABLE)
        shown = json.dumps([{"path": TABLE, "type": "table"}])
        self._client.set_tag(self._id, "mlflow.loggedArtifacts", shown)

    def close(self, status: str) -> None:
        """Sends the remaining data and the final status."""
        self.send_metrics()
        self.send_files(*LAST_FILES)
        self.send_table()
        self._client.set_tag(self._id, "status", status)
        self._client.set_terminated(
            self._id, STATUS.get(status, "KILLED"), _modified(self._record.metrics_file)
        )


def run_name(folder: Path) -> str:
    """Returns the end of the path: "2026-11-21/12-30-05", or "12-30-05/3" in a sweep."""
    return "/".join(folder.parts[-2:])


def _modified(path: Path) -> int | None:
    """Returns the file's modification time in ms; None, MLflow's current time, without a file."""
    return int(path.stat().st_mtime * 1000) if path.exists() else None


def _identity(folder: Path) -> str:
    path = folder / "tracker.json"
    if not path.exists():
        replace_file(path, json.dumps({IDENTITY: uuid.uuid4().hex}) + "\n")
    return json.loads(path.read_text())[IDENTITY]


def _key(name: str) -> str:
    """Returns the name with characters that MLflow allows, as a normalized path."""
    return posixpath.normpath(re.sub(r"[^\w/. :-]", "_", name)).strip("./")[:250] or "_"


def _tags(folder: Path) -> dict[str, str]:
    environment = json.loads((folder / "environment.json").read_text())
    tags = {_key(k): str(v) for k, v in environment.items() if isinstance(v, str | int | float)}
    if "git_commit" in tags:
        tags[COMMIT] = tags["git_commit"]
    return tags | {"folder": str(folder)}


def _parameters(folder: Path) -> dict[str, str]:
    """Returns the parameters that distinguish runs: sizes, names of phases, and all overrides."""
    config = yaml.safe_load((folder / "config.yaml").read_text())
    names, overrides = {}, []
    if (hydra := folder / ".hydra").is_dir():
        names = yaml.safe_load((hydra / "hydra.yaml").read_text())["hydra"]["runtime"]["choices"]
        overrides = yaml.safe_load((hydra / "overrides.yaml").read_text())
    found = {key: config.get(key) for key in ROOT_KEYS}
    for group in GROUPS:
        options = config.get(group) or {}
        found[group] = names.get(group, options.get("_target_"))
        found |= {key: options.get(key.split(".")[1]) for key in OPTIONS if key.startswith(group)}
    for override in overrides:
        key, _, value = override.partition("=")
        found[key.lstrip("+~")] = value
    return {_key(k): str(v)[:6000] for k, v in found.items() if v is not None}
