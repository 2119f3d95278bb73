"""Mirrors run folders into MLflow, for runs that MLflow missed or that were not tracked.

    python -m rl4p.send outputs/runs/2026-11-21/12-30-05 [--uri http://host:5000]

Metrics that MLflow already has are not sent again.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from rl4p.configuration.yaml_file import read_mapping
from rl4p.errors import InputError, RunError
from rl4p.runs.record import Record
from rl4p.runs.tracker.background import reason
from rl4p.runs.tracker.description import options_of

TARGETS = {"mlflow": "MLflow", "tensorboard": "TensorBoard", "wandb": "WandB", "csv": "CSV"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m rl4p.send", description="Mirrors run folders into MLflow."
    )
    parser.add_argument("run", nargs="+", type=Path, help="the folder of a run")
    parser.add_argument("--uri", help="the tracking store (default: that of the run)")
    parser.add_argument("--experiment", help="the MLflow experiment (default: that of the run)")
    parser.add_argument("--register", help="the name of a model that gets the policy as a version")
    parser.add_argument("--tracker", choices=TARGETS, default="mlflow", help="(default: mlflow)")
    given = vars(parser.parse_args(arguments))
    try:
        for folder in given.pop("run"):
            print(send(folder, **given))
    except (InputError, RunError) as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def send(folder: Path, tracker: str = "mlflow", **given: str | None) -> str:
    """Sends one run folder to a tracker and returns a sentence that reports it.

    The given options replace those of the run; None is ignored.

    Raises:
      InputError: `folder` is not the folder of a run, or no tracking store is configured.
      RunError: the tracking store failed or could not be reached.
    """
    if not (folder / "config.yaml").is_file():
        raise InputError(f"{folder} is not the folder of a run: it has no config.yaml.")
    config = read_mapping(folder / "config.yaml")
    module = f"rl4p.runs.tracker.{tracker}"
    options = options_of(config.get("tracker"), f"{module}.{TARGETS[tracker]}") or {}
    options |= {name: value for name, value in given.items() if value is not None}
    if tracker == "mlflow" and "uri" not in options:
        raise InputError(f"{folder} was run without MLflow: set --uri to the store to send it to.")
    try:
        receiver = getattr(import_module(module), TARGETS[tracker])(**options)
    except TypeError as error:
        raise InputError(f"tracker={tracker} cannot be opened: {error}.") from error
    record = Record(folder)
    status = (record.summary() or {}).get("status", "stopped")  # a killed run has no summary
    steps = len(record.metrics())
    place = f"MLflow at {receiver.uri}" if tracker == "mlflow" else f"tracker={tracker}"
    try:
        mirror = receiver.mirror(folder)
        mirror.close(status)
        mirror.upload(status)
    except Exception as error:
        raise RunError(f"{place} did not save {folder}: {reason(error)}") from error
    return f"{folder} is in {place} with its {steps} lines of metrics."


if __name__ == "__main__":
    sys.exit(main())
