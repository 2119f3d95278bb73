"""Sends the records of runs to a tracker that missed them, such as MLflow.

    python -m rl4p.send run=FOLDER [tracker=mlflow] [tracker.uri=http://HOST:5000] [KEY=VALUE ...]

Metrics that the tracker already has are not sent again.

Words
  run=FOLDER        a run; run=latest is the run of outputs/runs that was started last. A,B and a
                    path for each run are several
  tracker=NAME      mlflow, tensorboard, wandb or csv; without it mlflow
  tracker.uri=URI   the store of MLflow; without it, the store of the run, or MLFLOW_TRACKING_URI
  tracker.experiment=NAME   the experiment of MLflow; without it, the experiment of the run
  tracker.register=NAME     register the policy as a version of this model
"""

import sys
from collections.abc import Sequence

from rl4p.base.terminal import write
from rl4p.command.commands import Grammar, read, run_command
from rl4p.configuration.trust import names_in
from rl4p.runs.folder import run_folder
from rl4p.runs.tracker.sending import Destination, SendOptions, send

SEND = Grammar(name="send", kind=SendOptions, sections={"tracker": Destination})


def job(words: list[str]) -> None:
    options = read(words, SEND).options
    for folder in options.run:
        write(send(run_folder(folder), options.tracker, names_in(options.allow)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    return run_command(SEND, __doc__ or "", job, arguments)


if __name__ == "__main__":
    sys.exit(main())
