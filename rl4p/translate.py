"""Translates a configuration of TRL or verl into a command of rl4p.

    python -m rl4p.translate FILE [devices=N] [rows=N] [KEY=VALUE ...]

    python -m rl4p.translate grpo_config.yaml devices=8 rows=7473
    python -m rl4p.translate run_qwen.sh rows=7473
    python -m rl4p.translate algorithm.adv_estimator=grpo data.train_batch_size=1024

Words
  file=FILE          a file of TRL or verl; a path without a key is the same: the arguments of a
                     GRPOConfig as YAML or JSON, the configuration of verl as YAML, or a shell
                     script with the words of either
  KEY=VALUE          more keys of TRL or verl, which replace those of the file
  devices=N          the number of processes of TRL, which multiplies its batch. Without it
                     num_processes of the file, or 1
  rows=N             the number of prompts of the data set, which gives the steps of an epoch

Prints the command; the sizes, learning rate, KL penalty, clipping and aggregation of the run beside
the defaults of the library, whose version and file are named; and what is not in the command, with
the reason. Keys that a file leaves out have the library's defaults.
"""

import sys
from collections.abc import Sequence

from rl4p.command.commands import run_command


def job(arguments: list[str]) -> None:
    from rl4p.tools.translation import translate

    translate(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    return run_command("rl4p.tools.translation:TRANSLATE", __doc__ or "", job, arguments)


if __name__ == "__main__":
    sys.exit(main())
