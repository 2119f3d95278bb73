"""Runs each mutant against the tests that should notice it, and prints the survivors.

    make mutants                           all of them
    make mutants ARGS="--name checkpoint"  those with a word in their name or file

First the same tests run on the code as it is: a test that fails anyway notices nothing.
Exit code 1: a mutant survived, or a patch or a test could not be used.
"""

import argparse
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
from pathlib import Path

from tests.mutants.mutant import ROOT, Mutant, read

COPIED = ("rl4p", "conf", "experiments", "tests", "pyproject.toml", "README.md", "CHANGELOG.md",
          "CONTRIBUTING.md", "Makefile", "constraints.txt", ".ci")  # fmt: skip
PASSED, FAILED = 0, 1  # exit codes of pytest
NOTICED, SURVIVED = "noticed", "SURVIVED"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="YAML files of mutants")
    parser.add_argument("--name", default="", help="only mutants with this in their name or file")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=600, help="the limit of one run")
    parser.add_argument("--trust", action="store_true", help="skip the run on unchanged code")
    chosen = parser.parse_args(arguments)
    mutants = [m for m in read(chosen.files) if chosen.name in m.name or chosen.name in m.file]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(chosen.workers) as pool:
        trees: queue.Queue[Path] = queue.Queue()
        for worker in range(chosen.workers):
            trees.put(copy_of_the_tree(Path(folder) / str(worker)))
        if not chosen.trust:
            started = time.monotonic()
            tests = sorted({mutant.tests for mutant in mutants})
            results = pool.map(lambda words: on_a_tree(trees, None, words, chosen.seconds), tests)
            failing = [words for words, code in zip(tests, results, strict=True) if code != PASSED]
            if failing:
                print("These tests do not pass on the code as it is:", *failing, sep="\n  ")
                return 1
            print(f"The tests pass on unchanged code ({time.monotonic() - started:.0f} s).")

        def verdict(mutant: Mutant) -> str:
            started = time.monotonic()
            code = on_a_tree(trees, mutant, mutant.tests, chosen.seconds)
            found = {PASSED: SURVIVED, FAILED: NOTICED}.get(code, f"NOT JUDGED ({code})")
            print(f"{found:9} {time.monotonic() - started:5.1f} s  {mutant.name}", flush=True)
            return found

        verdicts = list(pool.map(verdict, mutants))
    bad = [m.name for m, found in zip(mutants, verdicts, strict=True) if found != NOTICED]
    print(f"{len(mutants) - len(bad)} of {len(mutants)} mutants are noticed.")
    print(*(f"  not noticed: {name}" for name in bad), sep="\n", end="\n" if bad else "")
    return 1 if bad else 0


def copy_of_the_tree(folder: Path) -> Path:
    """Returns a copy of the repository's files, for one worker to change."""
    folder.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", "outputs")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(source, folder / name)
    return folder


def on_a_tree(
    trees: "queue.Queue[Path]", mutant: Mutant | None, tests: str, seconds: float
) -> int | str:
    """Runs tests in a free copy with the mutant's fault in it.

    Returns:
      The exit code of pytest, or a word where there is none.
    """
    tree = trees.get()
    try:
        if mutant is None:
            return exit_code(tree, tests, seconds)
        path = tree / mutant.file
        source = path.read_text()
        try:
            changed = mutant.applied(source)
        except ValueError as error:
            print(error)
            return "does not apply"
        path.write_text(changed)
        try:
            return exit_code(tree, tests, seconds)
        finally:
            path.write_text(source)
    finally:
        trees.put(tree)


def exit_code(tree: Path, tests: str, seconds: float) -> int | str:
    """Runs pytest until the first failure; a run over the limit counts as a failure."""
    quiet = ("-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=no")
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "jax"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *quiet, *shlex.split(tests)],
        cwd=tree,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
