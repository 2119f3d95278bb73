"""Runs each mutant against the tests that should detect it, and prints the survivors.

    make mutants                           all of them
    make mutants ARGS="--name checkpoint"  those with a word in their name or file

First the same tests run on the unchanged code: a test that already fails detects nothing.
Exit code 1: a mutant survived, or a patch or a test could not be used.
"""

import argparse
import json
import os
import queue
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import tests.conftest  # noqa: F401  the environment of tests, before workers import JAX
from tests.mutants.mutant import ROOT, Mutant, read
from tests.mutants.worker import BROKEN, LATE

COPIED = ("rl4p", "conf", "experiments", "tests", "pyproject.toml", "README.md", "CHANGELOG.md",
          "CONTRIBUTING.md", "LICENSE", "Makefile", "constraints.txt", ".ci", "docs",
          "mkdocs.yml")  # fmt: skip
PASSED, FAILED = 0, 1  # exit codes of pytest
NOTICED, SURVIVED = "noticed", "SURVIVED"


class Tree:
    """A copy of the repository in which mutants are tried, one after the other."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        ignored = shutil.ignore_patterns("__pycache__", "outputs")
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, symlinks=True, ignore=ignored)
            else:
                shutil.copy(source, folder / name)
        self.folder = folder
        self.worker = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "mutants" / "worker.py"), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "TRANSFORMERS_VERBOSITY": "error"},
        )

    def run(self, tests: str, seconds: float) -> int:
        """Runs pytest with these arguments and returns its exit code."""
        assert self.worker.stdin is not None
        assert self.worker.stdout is not None
        print(json.dumps({"tests": shlex.split(tests), "seconds": seconds}), file=self.worker.stdin)
        self.worker.stdin.flush()
        return int(self.worker.stdout.readline())

    @contextmanager
    def changed(self, mutant: Mutant):
        """Applies the mutant to the copy for the duration of the context.

        Raises:
          ValueError: the mutant does not apply.
        """
        path = self.folder / mutant.file
        source = path.read_text()
        path.write_text(mutant.applied(source))
        try:
            yield
        finally:
            path.write_text(source)


def verdicts(
    mutants: Sequence[Mutant], workers: int, seconds: float, *, trust: bool = False
) -> list[str]:
    """Returns whether the tests of each mutant notice it: `NOTICED`, `SURVIVED` or a reason.

    Args:
      seconds: the limit of one run.
      trust: skips the run on unchanged code, where all tests must pass.
    """
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(workers) as pool:
        trees: queue.Queue[Tree] = queue.Queue()
        for worker in range(workers):
            trees.put(Tree(Path(folder) / str(worker)))

        def passes(tests: str) -> bool:
            tree = trees.get()
            try:
                return tree.run(tests, seconds) == PASSED
            finally:
                trees.put(tree)

        def verdict(mutant: Mutant) -> str:
            tree, started = trees.get(), time.monotonic()
            try:
                with tree.changed(mutant):
                    code = tree.run(mutant.tests, seconds)
                # A fault may also make the tests hang or kill their process. The run on unchanged
                # code has shown that the tests alone do neither.
                noticed = (FAILED, LATE, BROKEN)
                found = {PASSED: SURVIVED, **dict.fromkeys(noticed, NOTICED)}.get(code)
                found = found or f"NOT JUDGED: exit code {code} of pytest"
            except ValueError as error:
                found = f"NOT JUDGED: {error}"
            finally:
                trees.put(tree)
            print(f"{found:9} {time.monotonic() - started:5.1f} s  {mutant.name}", flush=True)
            return found

        if not trust:
            tests = sorted({mutant.tests for mutant in mutants})
            failing = [
                t for t, good in zip(tests, pool.map(passes, tests), strict=True) if not good
            ]
            if failing:
                sys.exit("\n  ".join(["These tests do not pass on the code as it is:", *failing]))
            print(f"The tests of {len(mutants)} mutants pass on unchanged code.", flush=True)
        return list(pool.map(verdict, mutants))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="YAML files of mutants")
    parser.add_argument("--name", default="", help="only mutants with this in their name or file")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=600, help="the limit of one run")
    parser.add_argument("--trust", action="store_true", help="skip the run on unchanged code")
    chosen = parser.parse_args(arguments)
    mutants = [m for m in read(chosen.files) if chosen.name in m.name or chosen.name in m.file]
    judged = verdicts(mutants, chosen.workers, chosen.seconds, trust=chosen.trust)
    bad = [m.name for m, found in zip(mutants, judged, strict=True) if found != NOTICED]
    print(f"{len(mutants) - len(bad)} of {len(mutants)} mutants are noticed.")
    print(*(f"  not noticed: {name}" for name in bad), sep="\n", end="\n" if bad else "")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
