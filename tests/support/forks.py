"""Starts commands in forks of a process that has imported the libraries, but nothing of rl4p.

A start takes the time of the command itself, and not the seconds in which JAX, Orbax and MLflow are
imported. Signals, exit codes, standard output and error are those of a process of its own.
"""

import atexit
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LIBRARIES = (
    *("absl.logging", "flax.linen", "huggingface_hub", "hydra", "jax", "jax.numpy"),
    *("matplotlib.figure", "mlflow", "numpy", "omegaconf", "optax", "orbax.checkpoint"),
    *("pydantic", "rich.console", "scipy", "tokenizers", "transformers"),
)
OF_A_TEST = ("PYTEST_CURRENT_TEST",)


class Forks:
    """Starts commands; the process behind it begins with the first of them."""

    def __init__(self) -> None:
        self.environment = environment()
        self.process: subprocess.Popen[str] | None = None

    def run(self, words: Sequence[str], cwd: Path | None = None) -> subprocess.CompletedProcess:
        """Runs `python -m MODULE ...`, and returns what `subprocess.run` would.

        With another environment than at the beginning it is a process of its own, because libraries
        read variables when they are imported. So is a sweep (-m), whose launchers start processes.
        """
        if environment() != self.environment or "-m" in words:
            line = [sys.executable, "-m", *words]
            return subprocess.run(line, cwd=cwd, capture_output=True, text=True, check=False)
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            atexit.register(self.close)
        with tempfile.TemporaryDirectory() as folder:
            out, error = (Path(folder) / name for name in ("out", "error"))
            asked = {"words": list(words), "cwd": str(cwd or Path.cwd())}
            asked |= {"out": str(out), "error": str(error)}
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            print(json.dumps(asked), file=self.process.stdin, flush=True)
            code = int(self.process.stdout.readline())
            return subprocess.CompletedProcess(words, code, out.read_text(), error.read_text())

    def close(self) -> None:
        if self.process is not None:
            with self.process:
                assert self.process.stdin is not None
                self.process.stdin.close()


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in OF_A_TEST}


def asked_for() -> Mapping[str, Any] | None:
    """Forks for each request on standard input; returns it in the fork, and None at the end."""
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            return request
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return None


def become(request: Mapping[str, Any]) -> None:
    """Runs the command of a request as this process."""
    for descriptor, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["out"], os.O_WRONLY | os.O_CREAT),
        (2, request["error"], os.O_WRONLY | os.O_CREAT),
    ):
        os.dup2(os.open(path, flags), descriptor)
    os.chdir(request["cwd"])
    sys.path.insert(0, request["cwd"])
    module, *sys.argv[1:] = request["words"]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    del sys.path[0]  # this folder, whose modules have names of libraries
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # as rl4p does before its import
    for each in LIBRARIES:
        importlib.import_module(each)
    if (request := asked_for()) is not None:
        become(request)
