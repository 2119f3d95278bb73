"""Serves a policy over HTTP, to OpenAI's clients and to programs that speak SGLang's or vLLM's API.

    python -m rl4p.serve run=FOLDER [step=N] [average=true] [port=PORT] [KEY=VALUE ...]
    python -m rl4p.serve model=pretrained model.path=FOLDER
    python -m rl4p.serve model=tiny port=0

The server is ready when it prints its address; then GET /health answers 200. Ctrl-C or SIGTERM ends
it. docs/serving.md has the endpoints.

Words
  run=FOLDER             a run; run=latest is the run of outputs/runs that was started last
  step=N                 the checkpoint after step N; without it the newest
  checkpoint=best        the best checkpoint, by the checkpoint.best of the run
  average=true           the moving average of the parameters (ema.decay)
  port=8000              the port; 0 chooses a free one
  host=127.0.0.1         the address to listen at. One that other machines reach needs key_variable
  key_variable=NAME      the environment variable with a token. Requests must then send the header
                         Authorization: Bearer TOKEN
  name=NAME              the name of the model in requests; otherwise the name of its folder
  slots=32               completions that are decoded at a time
  kv_cache_dtype=auto    the dtype of cached keys and values: auto is that of activations, and int8
                         needs half of the memory of bfloat16
  waiting=1024           completions that wait for a slot; further requests are refused (429)
  body_mebibytes=16      the longest body of a request
  prompting=true         the run's data.system_prompt, data.examples and data.prompt stand around
                         the messages of a chat; the command line may change these three keys

The other words are keys of rl4p.train: model and mesh, and seed if there is no run.
"""

import sys
from collections.abc import Sequence

from rl4p.command.commands import run_command
from rl4p.tools.serving.options import SERVE, read_options


def job(arguments: list[str]) -> None:
    read_options(arguments)
    from rl4p.tools.serving.job import serve  # imports JAX, which --help and errors do not need

    serve(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    return run_command(SERVE, __doc__ or "", job, arguments)


if __name__ == "__main__":
    sys.exit(main())
