"""Runs pytest in one copy of the repository, once for each request.

Reads one JSON line per request and prints pytest's exit code. Slow imports happen only once: each
run is a fork of a process that has imported them, but nothing of this project.
"""

import json
import os
import signal
import sys
import time

import absl.logging  # noqa: F401
import flax.linen  # noqa: F401
import jax.numpy  # noqa: F401
import omegaconf  # noqa: F401
import optax  # noqa: F401
import orbax.checkpoint  # noqa: F401
import pytest

# A slow test may be the one that notices a fault.
ALL = "not parity and not real and not vllm and not tpu_plan and not gpu_plan"
QUIET = ("-m", ALL, "-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=no")
BROKEN, LATE = 99, 124


def in_a_fork(tree: str, tests: list[str], seconds: float) -> int:
    """Returns the exit code of pytest, or `LATE` if it exceeded the time limit."""
    child = os.fork()
    if child == 0:
        code = BROKEN
        try:
            os.setsid()
            os.chdir(tree)
            sys.path.insert(0, tree)
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nowhere, stream)
            code = int(pytest.main([*QUIET, *tests]))
        finally:
            os._exit(code)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return LATE


def main(tree: str) -> None:
    """Answers requests from standard input, line by line."""
    del sys.path[0]  # this folder: each copy has its own tests
    for line in sys.stdin:
        run = json.loads(line)
        print(in_a_fork(tree, run["tests"], run["seconds"]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
