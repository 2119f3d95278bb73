"""Samples responses to prompts, grades them, and writes those to keep as JSON lines.

    python -m rl4p.generate run=FOLDER out=FILE [step=N] [average=true] [KEY=VALUE ...]
    python -m rl4p.generate model=pretrained model.path=FOLDER data=jsonl data.path=... out=FILE
    python -m rl4p.generate server=http://HOST:PORT/v1 server.model=NAME data=... out=FILE

Rejection sampling in two commands:

    python -m rl4p.generate run=FOLDER prompts=2000 keep=correct best=1 out=kept.jsonl
    python -m rl4p.train experiment=arithmetic_sft data=jsonl data.path=kept.jsonl

Words
  run=FOLDER             a run; run=latest is the run of outputs/runs that was started last
  step=N                 the checkpoint after step N; without it the newest
  checkpoint=best        the best checkpoint, by the checkpoint.best of the run
  average=true           the moving average of the parameters (ema.decay)
  out=FILE               where the result is written: the kept responses as JSON lines. All have
                         their grades in FILE.responses.jsonl, for python -m rl4p.samples
  split=train            the questions to sample: train or held_out
  prompts=N              only the first N questions
  grade=true             grade with the reward terms; false writes responses without grades
  keep=TERM at_least=1   keep responses whose grade of a term (or of `reward`, the total) is at
                         least 1
  best=N                 keep the N responses of each prompt with the highest total reward
  pairs=true             write preference pairs for data=preferences: of each prompt the responses
                         with the highest and the lowest total reward, if these differ

Words for a server
  server=URL             an OpenAI-compatible server. It gets messages and applies its own template
  server.model=NAME      the model in the requests
  server.key_variable=V  the environment variable with the API key; without it no key is sent
  server.timeout_seconds=300   the deadline of a request
  server.attempts=6      how often a request is sent before it counts as failed
  server.concurrency=16  requests at a time
  server.body={...}      other fields of the request; null leaves a field out
  server.failed=stop     write nothing while responses are missing; skip goes on without them

The other words are keys of rl4p.train; with run=FOLDER the values of the run are the defaults:
group_size (samples of each prompt), prompts_per_step (prompts sampled at a time), seed,
rollout.temperature, rollout.top_p, max_prompt_tokens, max_response_tokens, data, reward, model,
mesh. Responses that do not end by themselves are never kept.

The same command goes on after a kill, and its result is the same. Other values of `keep`, `best`
and `reward` grade and choose again without sampling.
"""

import sys
from collections.abc import Sequence

from rl4p.command.commands import run_command
from rl4p.tools.generation.options import GENERATE, read_options


def job(arguments: list[str]) -> None:
    read_options(arguments)
    # Imports JAX, which --help and errors do not need.
    from rl4p.tools.generation.job import generate

    generate(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    return run_command(GENERATE, __doc__ or "", job, arguments)


if __name__ == "__main__":
    sys.exit(main())
