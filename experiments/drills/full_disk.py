"""Fills or locks the disk while a run saves, and checks that the run can go on afterwards.

    python -m experiments.drills.full_disk

Needs the right to mount a tmpfs (root on Linux). A run is started on disks of several sizes, from
almost nothing to almost enough. It must fail with a few sentences, no traceback, and a summary that
says so. After the disk has grown, it must resume and equal an undisturbed run. The same holds for a
disk that is read-only, and for a folder that becomes so while the run goes on.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from experiments.drills.outcome import tell
from experiments.drills.small_run import SMALL, TRAIN, difference, run, start, summary, trains

STEPS = ("steps=12", "checkpoint.every=1", "checkpoint.keep=2")
SHARES = (0.02, 0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
LOCKED_AFTER = (1, 5, 11)  # steps whose checkpoint is complete
WITHOUT = "-dac_override,-dac_read_search"  # the capabilities by which root ignores permissions
AS_ANY_USER = ("setpriv", f"--bounding-set={WITHOUT}", f"--inh-caps={WITHOUT}")
LINES = 10  # of standard error; a traceback has more


@contextmanager
def disk(place: Path, size: int) -> Iterator[Path]:
    """Mounts a disk with room for `size` bytes until the context ends."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def remount(place: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", place], check=True)


def judged(code: int, said: str, folder: Path, whole: Path, *, writable: bool = True) -> str:
    """Returns what was wrong with a failed run, after it has gone on, or "".

    Args:
      code, said: the exit code and the standard error of the run.
      folder, whole: the folders of the run and of an undisturbed one.
      writable: whether the run could have written a summary.
    """
    if code in (0, None):
        return f"exit code {code}"
    if "Traceback" in said or said.count("\n") > LINES:
        return f"{said.count(chr(10))} lines on standard error: {said[-200:]}"
    words = [f"resume={folder}"]
    begun = (folder / "metrics.jsonl").is_file() and (folder / "metrics.jsonl").read_bytes()
    if not begun:
        shutil.rmtree(folder, ignore_errors=True)
        words = [*SMALL, *STEPS, f"hydra.run.dir={folder}"]
    elif writable and not (folder / "summary.json").is_file():
        return "no summary"
    elif writable and summary(folder)["status"] != "failed":
        return f"status {summary(folder)['status']}"
    done = run(*words)
    return f"resume: {done.stderr[-300:]}" if done.returncode else difference(folder, whole)


def full(place: Path, share: float, whole: Path) -> str:
    most = size_of(whole)
    with disk(place, max(4096, int(share * most))) as mounted:
        folder = mounted / "run"
        done = run(*SMALL, *STEPS, f"hydra.run.dir={folder}")
        remount(place, f"size={4 * most}")
        return judged(done.returncode, done.stderr, folder, whole)


def read_only(place: Path, whole: Path) -> str:
    with disk(place, 4 * size_of(whole)) as mounted:
        remount(place, "ro")
        done = run(*SMALL, *STEPS, f"hydra.run.dir={mounted / 'run'}")
        remount(place, "rw")
        return judged(done.returncode, done.stderr, mounted / "run", whole)


def locked(place: Path, step: int, whole: Path) -> str:
    """Makes the folder of a run read-only after a step; the run has to respect permissions."""
    folder = place / "run"
    process = start(*SMALL, *STEPS, f"hydra.run.dir={folder}", program=(*AS_ANY_USER, *TRAIN))
    while process.poll() is None and not (folder / "checkpoints" / str(step)).exists():
        time.sleep(0.001)
    allow(folder, 0o555, 0o444)
    _, said = process.communicate()
    allow(folder, 0o755, 0o644)
    return judged(process.returncode, said, folder, whole, writable=False)


def allow(folder: Path, folders: int, files: int) -> None:
    """Sets the permissions of all folders and files of a run that is still there."""
    for place, _, names in os.walk(folder):
        for path, mode in [(place, folders), *((f"{place}/{name}", files) for name in names)]:
            with suppress(FileNotFoundError):  # Orbax has removed or renamed it
                Path(path).chmod(mode)


def main() -> int:
    problems = {}
    with tempfile.TemporaryDirectory() as temporary:
        whole = Path(temporary) / "whole"
        run(*SMALL, *STEPS, f"hydra.run.dir={whole}")
        if not trains(whole):
            return tell("full_disk", "a run that trains", "some step had no gradient", held=False)
        for share in SHARES:
            if problem := full(Path(temporary) / f"full_{share}", share, whole):
                problems[f"full at {share:.0%}"] = problem
        if problem := read_only(Path(temporary) / "read_only", whole):
            problems["read-only"] = problem
        for step in LOCKED_AFTER:
            if problem := locked(Path(temporary) / f"locked_{step}", step, whole):
                problems[f"locked after step {step}"] = problem
    for name, problem in problems.items():
        print(f"{name}: {problem}", file=sys.stderr)
    got = {"cases": len(SHARES) + 1 + len(LOCKED_AFTER), "wrong": sorted(problems)}
    asked = "a failure in sentences with a summary, and every digit the same once there is room"
    return tell("full_disk", asked, got, held=not problems)


if __name__ == "__main__":
    sys.exit(main())
