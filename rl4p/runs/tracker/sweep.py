"""The parent run in MLflow for the runs of a sweep (``python -m rl4p.train -m ...``).

A view of the page (`view.py`) shows its runs, with the keys that differ as the first columns. At
the end of the sweep the parent gets the comparison of its runs.
"""

import atexit
import logging
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from rl4p.base.errors import InputError
from rl4p.base.terminal import write
from rl4p.runs.signals import AT_FORCED_END
from rl4p.runs.sweep import FAILURE
from rl4p.runs.tracker.background import reason
from rl4p.runs.tracker.description import options_of, short, swept
from rl4p.runs.tracker.mirror import (
    IDENTITY,
    NOTE,
    PARENT,
    SWEEP,
    find_run,
    identity_of,
    mlflow_key,
    source_tags,
)
from rl4p.runs.tracker.mlflow import PARENT_VARIABLE, TARGET, MLflow
from rl4p.runs.tracker.view import page, share_view, view, where_to_look

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger(__name__)

COMPARISON = "compare"  # the folder of the comparison among the files of the parent
_opened: dict[Path, tuple[MLflow, str]] = {}  # the parents that this process opened, by folder


class ParentRun(Callback):
    """A Hydra callback that opens the parent before the first job and closes it after the last.

    The parent's name is what the sweep varies ("advantage=grpo,rloo seed=0,1,2"). Its description
    links to the table of its runs. A sweep that continues in the same folder has the same parent.

    An environment variable tells the jobs the parent; launchers pass it on to their processes. If
    the store is down, the sweep gets a warning and no parent, after the timeout of one request.
    """

    # The store, the parent's id, the keys that vary and the folder. It holds no client, because
    # launchers pickle callbacks.
    _parent: tuple[MLflow, str, list[str], Path] | None = None

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        os.environ.pop(PARENT_VARIABLE, None)
        options = options_of(OmegaConf.to_container(config.tracker, resolve=True), TARGET)
        if options is None:
            return
        try:
            tracker = MLflow(**options)
        except (InputError, TypeError):
            return  # every job reports this error with a better message
        params = OmegaConf.select(config, "hydra.sweeper.params") or {}
        axes = swept(config.hydra.overrides.task, params)
        try:
            parent = open_parent(*tracker.connect(), config, axes)
        except Exception as error:  # noqa: BLE001 - the sweep continues after any error
            problem = "The runs of this sweep have no parent run in MLflow at %s: %s"
            log.warning(problem, tracker.uri, reason(error))
            return
        self._parent = tracker, parent, list(axes), Path(config.hydra.sweep.dir)
        _opened[Path(config.hydra.sweep.dir).resolve()] = tracker, parent
        os.environ[PARENT_VARIABLE] = parent
        # Hydra does not call on_multirun_end if an exception ends the sweep.
        atexit.register(self._close)
        AT_FORCED_END.append(self._close)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        self._close("FINISHED")

    def _close(self, status: str = "KILLED") -> None:
        """Ends the parent run: failed if a job failed, killed if one was stopped, else `status`."""
        if self._parent is None:
            return
        tracker, parent, keys, folder = self._parent
        self._parent = None
        os.environ.pop(PARENT_VARIABLE, None)
        atexit.unregister(self._close)
        AT_FORCED_END.remove(self._close)
        try:
            client, experiment = tracker.connect()
            children = client.search_runs([experiment], f"tags.`{PARENT}` = '{parent}'")
            ended = {child.info.status for child in children}
            # A job that fails early has no run here.
            if "FAILED" in ended or any(folder.glob(f"*/{FAILURE}")):
                status = "FAILED"
            elif ended & {"KILLED", "RUNNING"}:  # a signal stopped the sweep, or one of its jobs
                status = "KILLED"
            metrics = {name for child in children for name in child.data.metrics}
            columns = [mlflow_key(key) for key in keys]
            share_view(client, experiment, parent, view(columns, metrics, parent=parent))
            client.set_terminated(parent, status)
            write(where_to_look(str(tracker.uri), page(experiment, parent)))
        except Exception as error:  # noqa: BLE001 - the runs have ended and their records exist
            log.warning("MLflow still shows this sweep as running: %s", reason(error))


def open_parent(
    client: "MlflowClient", experiment: str, config: DictConfig, axes: dict[str, str]
) -> str:
    """Returns the id of the parent run of a sweep over `axes`, which it finds or creates."""
    folder = Path(config.hydra.sweep.dir).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    identity = identity_of(folder)
    command = shlex.join(["python", "-m", "rl4p.train", "-m", *config.hydra.overrides.task])
    tags = {"folder": str(folder), SWEEP: " ".join(config.hydra.overrides.task)}
    if (run := find_run(client, experiment, identity)) is not None:
        parent = run.info.run_id
        client.update_run(parent, status="RUNNING")
    else:
        name = short(f"{key}={values}" for key, values in axes.items())
        tags |= source_tags() | {IDENTITY: identity, "command": command}
        name = name or "/".join(folder.parts[-2:])
        parent = client.create_run(experiment, run_name=name, tags=tags).info.run_id
        client.set_tag(parent, NOTE, f"{links(experiment, parent)}\n\n`{command}`")
    columns = [mlflow_key(key) for key in axes]  # what differs comes first
    share_view(client, experiment, parent, view(columns, (), parent=parent))
    return parent


def links(experiment: str, parent: str) -> str:
    """Returns links, in Markdown, to the table and to the charts of the runs of a sweep."""
    table = page(experiment, parent)
    charts = page(experiment, parent, charts=True)
    return f"[Table of the runs, what differs first]({table}) · [Charts of the runs]({charts})"


def attach_comparison(
    folder: Path, comparison: Path, table: str, means: Mapping[str, float]
) -> None:
    """Adds the comparison of a sweep to its parent: files, metrics, a table in the description.

    Nothing happens if this process has opened no parent. If the store is down, there is a warning.

    Args:
      means: the interquartile mean of each group, which becomes a metric.
    """
    if folder.resolve() not in _opened:
        return
    tracker, parent = _opened[folder.resolve()]
    try:
        client, experiment = tracker.connect()
        client.log_artifacts(parent, str(comparison), COMPARISON)
        for group, mean in means.items():
            client.log_metric(parent, mlflow_key(f"IQM/{group.replace('=', ': ')}"), mean)
        command = client.get_run(parent).data.tags["command"]
        client.set_tag(parent, NOTE, f"{links(experiment, parent)}\n\n{table}\n\n`{command}`")
    except Exception as error:  # noqa: BLE001 - the comparison is complete in its folder
        log.warning("The parent run in MLflow lacks the comparison: %s", reason(error))
