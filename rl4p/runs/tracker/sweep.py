"""The parent run in MLflow for the runs of a sweep (``python -m rl4p.train -m ...``), and a view.

By default MLflow's page shows the columns Source, Models and Dataset of all runs, and hides the
runs of a sweep below their parent. A *shared view*, as the page's button "Share" makes one, is an
experiment tag that holds the columns, their order and a filter: the first columns of a sweep are
those that differ between its runs. A link with the name of the view opens it.
"""

import atexit
import json
import logging
import os
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from rl4p.configuration.sweep import FAILURE
from rl4p.errors import InputError
from rl4p.runs.signals import AT_FORCED_END
from rl4p.runs.tracker.background import reason
from rl4p.runs.tracker.description import options_of, short, swept
from rl4p.runs.tracker.mirror import (
    IDENTITY,
    NOTE,
    PARENT,
    find_run,
    identity_of,
    mlflow_key,
    source_tags,
)
from rl4p.runs.tracker.mlflow import PARENT_VARIABLE, TARGET, MLflow
from rl4p.terminal import write

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

log = logging.getLogger(__name__)

VIEW = "mlflow.sharedViewState."
REWARD = "reward/mean"


class ParentRun(Callback):
    """A Hydra callback that opens the parent before the first job and closes it after the last.

    The parent's name is what the sweep varies ("advantage=grpo,rloo seed=0,1,2"). Its description
    links to the table of its runs. A sweep that continues in the same folder has the same parent.

    An environment variable tells the jobs the parent; launchers pass it on to their processes. If
    the store is down, the sweep gets a warning and no parent, after the timeout of one request.
    """

    def __init__(self) -> None:
        # The store, the parent's id, the keys that vary and the folder. It holds no client, because
        # launchers pickle callbacks.
        self._parent: tuple[MLflow, str, list[str], Path] | None = None

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
            log.warning(
                "The runs of this sweep have no parent run in MLflow at %s: %s",
                tracker.uri,
                reason(error),
            )
            return
        self._parent = tracker, parent, list(axes), Path(config.hydra.sweep.dir)
        os.environ[PARENT_VARIABLE] = parent
        # Hydra does not call on_multirun_end if an exception ends the sweep.
        atexit.register(self._close, "KILLED")
        AT_FORCED_END.append(self._interrupted)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        self._close("FINISHED")

    def _interrupted(self) -> None:
        self._close("KILLED")

    def _close(self, status: str) -> None:
        """Ends the parent, which has failed if a job has, whatever ended the sweep."""
        if self._parent is None:
            return
        tracker, parent, keys, folder = self._parent
        self._parent = None
        os.environ.pop(PARENT_VARIABLE, None)
        atexit.unregister(self._close)
        AT_FORCED_END.remove(self._interrupted)
        try:
            client, experiment = tracker.connect()
            children = client.search_runs([experiment], f"tags.`{PARENT}` = '{parent}'")
            ended = {child.info.status for child in children}
            # A job that fails early has no run here.
            if "FAILED" in ended or any(folder.glob(f"*/{FAILURE}")):
                status = "FAILED"
            elif ended & {"KILLED", "RUNNING"}:  # a signal stopped the sweep, or one of its jobs
                status = "KILLED"
            share_view(client, experiment, parent, keys, children)
            client.set_terminated(parent, status)
            write(where_to_look(str(tracker.uri), page(experiment, parent)))
        except Exception as error:  # noqa: BLE001 - the runs have ended and their records exist
            log.warning("MLflow still shows this sweep as running: %s", reason(error))


def where_to_look(uri: str, page: str) -> str:
    """Returns a sentence with the address of the runs of a sweep.

    Args:
      uri: the tracking store.
      page: the address, below MLflow's address.
    """
    if uri.startswith("http"):
        return f"The runs in MLflow: {uri.rstrip('/')}/{page}"
    command = shlex.join(["mlflow", "ui", "--backend-store-uri", uri])
    return f"The runs in MLflow ({command}): http://127.0.0.1:5000/{page}"


def open_parent(
    client: "MlflowClient", experiment: str, config: DictConfig, axes: dict[str, str]
) -> str:
    """Returns the id of the parent run of a sweep, which it finds or creates.

    Args:
      axes: the values over which the sweep runs, by key.
    """
    folder = Path(config.hydra.sweep.dir).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    identity = identity_of(folder)
    command = shlex.join(["python", "-m", "rl4p.train", "-m", *config.hydra.overrides.task])
    tags = {"folder": str(folder), "sweep": " ".join(config.hydra.overrides.task)}
    if (run := find_run(client, experiment, identity)) is not None:
        parent = run.info.run_id
        client.update_run(parent, status="RUNNING")
    else:
        name = short(f"{key}={values}" for key, values in axes.items())
        tags |= source_tags() | {IDENTITY: identity, "command": command}
        name = name or "/".join(folder.parts[-2:])
        parent = client.create_run(experiment, run_name=name, tags=tags).info.run_id
        client.set_tag(parent, NOTE, f"{links(experiment, parent)}\n\n`{command}`")
    share_view(client, experiment, parent, list(axes), [])
    return parent


def page(experiment: str, parent: str) -> str:
    """Returns the address of the runs of a sweep, below MLflow's address.

    It opens "Model training". Without ``workflowType`` MLflow 3.17 opens the view that the browser
    showed last, and at first "GenAI".
    """
    view = f"workflowType=machine_learning&viewStateShareKey={parent}"
    return f"#/experiments/{experiment}/runs?{view}&compareRunsMode=TABLE"


def links(experiment: str, parent: str) -> str:
    """Returns links, in Markdown, to the table and to the charts of the runs of a sweep."""
    table = page(experiment, parent)
    charts = table.replace("=TABLE", "=CHART")
    return f"[Table of the runs, what differs first]({table}) · [Charts of the runs]({charts})"


def share_view(
    client: "MlflowClient",
    experiment: str,
    parent: str,
    keys: Sequence[str],
    children: Iterable["Run"],
) -> None:
    """Saves the view of the runs of a sweep.

    Args:
      client: a client of the store.
      experiment: the id of the experiment.
      parent: the id of the sweep's run, which names the view.
      keys: the parameters that differ, which become the first columns.
      children: the runs so far. Their evaluations become the next columns.
    """
    names = {name for child in children for name in child.data.metrics}
    scores = sorted(x for x in names if x.startswith("eval/") and not x.endswith("/prompts"))
    client.set_experiment_tag(experiment, VIEW + parent, json.dumps(view(parent, keys, scores)))


def view(parent: str, keys: Sequence[str], scores: Sequence[str]) -> dict[str, Any]:
    """Returns the state of the page, in its own terms."""
    columns = [column("params", mlflow_key(key)) for key in keys]
    columns += [column("metrics", name) for name in [*scores[:6], REWARD]]
    fixed = [column("attributes", "Run Name"), "runDateAndNestInfo"]
    return {
        "searchFilter": f"tags.{PARENT} = '{parent}'",
        "orderByKey": column("metrics", scores[0] if scores else REWARD),
        "orderByAsc": False,
        "selectedColumns": columns,
        "columnOrder": [*fixed, *columns],
    }


def column(kind: str, name: str) -> str:
    return f"{kind}.`{name}`"
