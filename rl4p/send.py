"""Mirrors run folders into MLflow, for runs that MLflow missed or that were not tracked.

    python -m rl4p.send outputs/runs/2026-11-21/12-30-05 [--uri http://host:5000]

Metrics that MLflow already has are not sent again.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from rl4p.errors import InputError, RunError
from rl4p.runs.record import Record
from rl4p.runs.tracker.mirror import Mirror
from rl4p.runs.tracker.mlflow import MLflow, reason


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m rl4p.send", description="Mirrors run folders into MLflow."
    )
    parser.add_argument("run", nargs="+", type=Path, help="the folder of a run")
    parser.add_argument("--uri", help="the tracking store (default: that of the run)")
    parser.add_argument("--experiment", help="the MLflow experiment (default: that of the run)")
    chosen = parser.parse_args(arguments)
    try:
        for folder in chosen.run:
            print(send(folder, chosen.uri, chosen.experiment))
    except (InputError, RunError) as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def send(folder: Path, uri: str | None = None, experiment: str | None = None) -> str:
    """Sends one run folder and returns a sentence that reports it.

    Raises:
      InputError: `folder` is not the folder of a run, or no tracking store is configured.
      RunError: the tracking store failed or could not be reached.
    """
    if not (folder / "config.yaml").is_file():
        raise InputError(f"{folder} is not the folder of a run: it has no config.yaml.")
    options = yaml.safe_load((folder / "config.yaml").read_text()).get("tracker", {})
    uri = uri or options.get("uri")
    if uri is None:
        raise InputError(f"{folder} was run without MLflow: set --uri to the store to send it to.")
    tracker = MLflow(uri=uri, experiment=experiment or options.get("experiment", MLflow.experiment))
    record = Record(folder)
    # A killed run has no summary.
    status = (record.summary() or {}).get("status", "stopped")
    steps = len(record.metrics())
    try:
        Mirror(*tracker.connect(), folder).close(status)
    except Exception as error:
        raise RunError(f"MLflow at {tracker.uri} did not save {folder}: {reason(error)}") from error
    return f"{folder} is in MLflow at {tracker.uri} with its {steps} lines of metrics."


if __name__ == "__main__":
    sys.exit(main())
