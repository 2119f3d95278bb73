"""Evaluates a run, a checkpoint or a model on held-out prompts.

    python -m rl4p.evaluate run=FOLDER out=FOLDER [step=N] [average=true] [KEY=VALUE ...]
    python -m rl4p.evaluate model=pretrained model.path=FOLDER data=... out=FOLDER [KEY=VALUE ...]

A run is evaluated with its own template, data and graders. `step` selects a checkpoint; the default
is the newest. `average=true` evaluates the moving average of the parameters (`ema.decay`).
`model.path` is a folder in Hugging Face format, or OWNER/NAME on the hub. The other words are the
keys of rl4p.train that act on an evaluation:

    evaluation.samples=16      16 samples per prompt beside the greedy response: avg@16, pass@2, ...
    evaluation.pass_at_k=[4]   other values of k
    rollout.temperature=0.6    the temperature of the samples
    evaluation.prompts=100     the first 100 prompts of each task
    evaluation.rows=64         sequences sampled at a time
    suite=sums                 the tasks of conf/suite/sums.yaml; --config-dir=DIR finds your own
    data, reward, max_response_tokens, mesh, tracker, trusted_targets, ...

Writes evaluation.json (scores with 95 % intervals, and the template, stop strings, graders and
sampling behind them), responses.jsonl (one line per response) and plots/evaluation.png. The same
command continues an evaluation that was stopped or killed, with the same numbers.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rl4p.configuration.command_line import refuse_arguments, report


def evaluate(words: Sequence[str], config_dir: str | None) -> None:
    """Runs the evaluation of a command line."""
    from rl4p.configuration.evaluation import read

    request, config = read(words, config_dir=config_dir)
    from rl4p.distributed.processes import blaming, join  # imports JAX, which errors do not need
    from rl4p.runs.evaluation.job import evaluate

    with join(config), blaming():
        evaluate(config, request)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if not arguments or {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    here = str(Path.cwd())
    if not {"", here} & set(sys.path):
        sys.path.append(here)  # for the user's own modules; a console script lacks this entry
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.error = refuse_arguments
    parser.add_argument("--config-dir")
    parser.add_argument("words", nargs="*")
    try:
        chosen = parser.parse_intermixed_args(arguments)
        evaluate(chosen.words, chosen.config_dir)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - printed, with its exit code
        return report(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
