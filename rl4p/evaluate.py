"""Evaluates a run, a checkpoint or a model on held-out prompts.

    python -m rl4p.evaluate run=FOLDER out=FOLDER [step=N] [average=true] [KEY=VALUE ...]
    python -m rl4p.evaluate model=pretrained model.path=FOLDER data=... out=FOLDER [KEY=VALUE ...]

A run is evaluated with its own template, data and graders. `model.path` is a folder in Hugging Face
format, or OWNER/NAME on the hub.

Words
  run=FOLDER        a run; run=latest is the run of outputs/runs that was started last
  step=N            the checkpoint after step N; without it the newest
  checkpoint=best   the best checkpoint, by the checkpoint.best of the run
  average=true      the moving average of the parameters (ema.decay)
  export=FOLDER     a folder that the run exported (hooks.export), instead of a checkpoint
  out=FOLDER        where the result is written
  lm_eval=true      writes the results in the format of lm-evaluation-harness too, into out/lm_eval;
                    for an evaluation that is finished the same command with this word adds them

The other words are the keys of rl4p.train that act on an evaluation:

    evaluation.samples=16      16 samples per prompt beside the greedy response: avg@16, pass@2, ...
    evaluation.pass_at_k=[4]   other values of k
    evaluation.chosen_by=TERM  best-of-16 and weighted majority by the grades of a term
    rollout.temperature=0.6    the temperature of the samples
    evaluation.prompts=100     the first 100 prompts of each task
    evaluation.rows=64         sequences sampled at a time
    suite=sums                 the tasks of conf/suite/sums.yaml; --config-dir=DIR finds your own
    data, reward, max_response_tokens, mesh, tracker, trusted_targets, ...

Writes evaluation.json (scores with 95 % intervals, and the template, stop strings, graders and
sampling behind them), responses.jsonl (one line per response) and plots/evaluation.png. The same
command continues an evaluation that was stopped or killed, with the same numbers.
"""

import sys
from collections.abc import Sequence

from rl4p.command.commands import run_command
from rl4p.command.evaluation import EVALUATE, read


def job(arguments: list[str]) -> None:
    request, config = read(arguments)
    # Imports JAX, which errors do not need.
    from rl4p.distributed.processes import join_processes, reporting_errors
    from rl4p.tools.evaluation.job import evaluate

    with join_processes(config), reporting_errors():
        evaluate(config, request)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    return run_command(EVALUATE, __doc__ or "", job, arguments)


if __name__ == "__main__":
    sys.exit(main())
