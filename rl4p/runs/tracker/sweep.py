"""The parent run in MLflow for the runs of a sweep (``python -m rl4p.train -m ...``)."""

import atexit
import logging
import os
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from rl4p.errors import InputError
from rl4p.runs.tracker.mirror import PARENT, run_name
from rl4p.runs.tracker.mlflow import PARENT_VARIABLE, MLflow, reason

log = logging.getLogger(__name__)


class ParentRun(Callback):
    """A Hydra callback that opens the parent before the first job and closes it after the last.

    An environment variable tells the jobs the parent; launchers pass it on to their processes. If
    the store is down, the sweep gets a warning and no parent, after the timeout of one request.
    """

    def __init__(self) -> None:
        # The store and the parent's id. It holds no client, because launchers pickle callbacks.
        self._parent: tuple[MLflow, str] | None = None

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        os.environ.pop(PARENT_VARIABLE, None)
        options: Any = OmegaConf.to_container(config.tracker, resolve=True)
        if options.pop("_target_", None) != f"{MLflow.__module__}.{MLflow.__qualname__}":
            return
        try:
            tracker = MLflow(**options)
        except (InputError, TypeError):
            return  # every job reports this error with a better message
        folder = Path(config.hydra.sweep.dir).absolute()
        tags = {"folder": str(folder), "sweep": " ".join(config.hydra.overrides.task)}
        try:
            client, experiment = tracker.connect()
            run = client.create_run(experiment, run_name=run_name(folder), tags=tags)
        except Exception as error:  # noqa: BLE001 - the sweep continues after any error
            log.warning(
                "The runs of this sweep have no parent run in MLflow at %s: %s",
                tracker.uri,
                reason(error),
            )
            return
        self._parent = tracker, run.info.run_id
        os.environ[PARENT_VARIABLE] = run.info.run_id
        # Hydra does not call on_multirun_end if a job has failed.
        atexit.register(self._close, "FAILED")

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        self._close("FINISHED")

    def _close(self, status: str) -> None:
        if self._parent is None:
            return
        tracker, parent = self._parent
        self._parent = None
        os.environ.pop(PARENT_VARIABLE, None)
        atexit.unregister(self._close)
        failed = f"tags.`{PARENT}` = '{parent}' and attributes.status = 'FAILED'"
        try:
            client, experiment = tracker.connect()
            if client.search_runs([experiment], failed, max_results=1):
                status = "FAILED"
            client.set_terminated(parent, status)
        except Exception as error:  # noqa: BLE001 - the runs have ended and their records exist
            log.warning("MLflow still shows this sweep as running: %s", reason(error))
