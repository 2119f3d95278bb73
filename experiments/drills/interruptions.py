"""Runs that are interrupted and started again until they end, and the run that is not."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.drills.small_run import run, start, trains


class Whole:
    """A run that is not interrupted.

    Args:
      folder: where its folders are.
      words: its options.
      more: further options, with which it runs a second time; None runs it once.
      options: of the processes.

    Attributes:
      folder: the folder of the run.
      seconds: how long the run took; the second time, its programs were compiled before.
      trains: whether each step had a gradient.
    """

    def __init__(
        self, folder: Path, *words: str, more: tuple[str, ...] | None = (), **options: Any
    ):
        self.folder = folder / "whole"
        again = () if more is None else (f"hydra.run.dir={folder / 'again'}", *more)
        for own in ((f"hydra.run.dir={self.folder}",), again):
            if own:
                began = time.perf_counter()
                run(*words, *own, **options)
                self.seconds = time.perf_counter() - began
        self.trains = trains(self.folder)


def run_to_its_end(
    words: Callable[[], list[str]], interrupted: Callable[[subprocess.Popen], bool], **options: Any
) -> str:
    """Starts a run, and again after each interruption, until it ends by itself.

    Args:
      words: returns the command line of a start.
      interrupted: waits, and returns whether it has interrupted the process.
      options: of the processes.

    Returns:
      What the run said if it failed, otherwise "".
    """
    while True:
        process = start(*words(), **options)
        if interrupted(process):
            continue
        _, said = process.communicate()
        return f"exit code {process.returncode}: {said[-300:]}" if process.returncode else ""


def begun_or_resumed(folder: Path, *words: str) -> list[str]:
    """Returns the command line that resumes a run, or begins it if it has no record."""
    begun = (folder / "metrics.jsonl").is_file()
    return [f"resume={folder}"] if begun else [*words, f"hydra.run.dir={folder}"]


def killed_after(process: subprocess.Popen, seconds: float | None) -> bool:
    """Kills a process after some seconds; returns False if it has ended before."""
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return True
    return False
