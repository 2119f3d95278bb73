"""Sends the record of a run folder to a tracker."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Literal

from rl4p.base.errors import InputError, RunError
from rl4p.configuration.capability import refuse_of_file, uses
from rl4p.configuration.trust import TRUSTED
from rl4p.configuration.yaml_file import read_mapping
from rl4p.runs.record import Record
from rl4p.runs.tracker.background import reason, warn_of_variables
from rl4p.runs.tracker.description import options_of
from rl4p.runs.tracker.mlflow import URI, WHY, WITHOUT_EFFECT

TARGETS = {
    "mlflow": "rl4p.runs.tracker.mlflow.MLflow",
    "tensorboard": "rl4p.runs.tracker.local.TensorBoard",
    "wandb": "rl4p.runs.tracker.wandb.WandB",
    "csv": "rl4p.runs.tracker.local.CSV",
}


@dataclass(frozen=True, kw_only=True)
class Destination:
    """The tracker that gets the records; None takes the option of the run (`MLflow`)."""

    name: Literal["mlflow", "tensorboard", "wandb", "csv"] = "mlflow"
    uri: str | None = None
    experiment: str | None = None
    register: str | None = None


@dataclass(frozen=True, kw_only=True)
class SendOptions:
    """The words of the command; `allow` is the store that a folder of somebody else may name."""

    run: tuple[str, ...]
    allow: tuple[str, ...] | str = ()
    tracker: Destination = field(default_factory=Destination)


def send(folder: Path, tracker: Destination, allowed: Sequence[str] = ()) -> str:
    """Sends one run folder to a tracker and returns a sentence that reports it.

    Raises:
      InputError: `folder` is not the folder of a run, or no tracking store is configured, or the
        folder of somebody else names it.
      RunError: the tracking store failed or could not be reached.
    """
    if not (folder / "config.yaml").is_file():
        raise InputError(f"{folder} is not the folder of a run: it has no config.yaml.")
    config = read_mapping(folder / "config.yaml")
    target = TARGETS[tracker.name]
    options = options_of(config.get("tracker"), target) or {}
    given = {key: value for key, value in asdict(tracker).items() if value is not None}
    name = given.pop("name")
    options |= given
    if name == "mlflow":
        warn_of_variables(WITHOUT_EFFECT, WHY)
        if "uri" not in options and not os.environ.get(URI):
            raise InputError(f"{folder} was run without MLflow: add tracker.uri=URI, its store.")
    node = {"_target_": target, **options}
    keys = [f"tracker.{key}" for key in given]
    refuse_of_file(folder / "config.yaml", list(uses(node, TRUSTED, "tracker")), allowed, keys)
    try:
        module, _, class_name = target.rpartition(".")
        receiver = getattr(import_module(module), class_name)(**options)
    except TypeError as error:
        raise InputError(f"tracker={name} cannot be opened: {error}.") from error
    record = Record(folder)
    status = (record.summary() or {}).get("status", "stopped")  # a killed run has no summary
    lines = len(record.metrics())
    store = f"MLflow at {receiver.uri}" if name == "mlflow" else f"tracker={name}"
    try:
        mirror = receiver.mirror(folder)
        mirror.close(status)
        mirror.upload(status)
    except Exception as error:
        raise RunError(f"{store} did not save {folder}: {reason(error)}") from error
    where = f"\n{page}" if (page := mirror.where()) else ""
    return f"{folder} is in {store} with its {lines} lines of metrics.{where}"
