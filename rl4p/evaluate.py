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
from functools import partial

from rl4p.configuration.command_line import refuse_arguments
from rl4p.configuration.job_options import run_job


def job(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.error = partial(refuse_arguments, arguments)
    parser.add_argument("--config-dir")
    parser.add_argument("words", nargs="*")
    given = parser.parse_intermixed_args(arguments)
    from rl4p.configuration.evaluation import read

    request, config = read(given.words, config_dir=given.config_dir)
    from rl4p.distributed.processes import blaming, join  # imports JAX, which errors do not need
    from rl4p.runs.responses.evaluation.job import evaluate

    with join(config), blaming():
        evaluate(config, request)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    return run_job(__doc__ or "", job, arguments)


if __name__ == "__main__":
    sys.exit(main())
