"""Runs in unusual surroundings, each compared with a run in usual ones.

    python -m experiments.drills.surroundings

Without HOME, in the C locale, with a closed standard output, from and into folders with spaces,
from an installed wheel; two runs that start in the same second, and two that resume one folder.
"""

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from experiments.drills.outcome import tell
from experiments.drills.small_run import SMALL, difference, environment, run, start, summary, trains

ROOT = Path(__file__).resolve().parents[2]
STEPS = ("steps=6", "checkpoint.every=1")
PATHS = {"PYTHONPATH": str(ROOT)}  # for processes in other folders


def without_home(folder: Path, whole: Path) -> str:
    gone = environment(HOME=None, XDG_CACHE_HOME=None, XDG_CONFIG_HOME=None)
    return ended(run(*SMALL, *STEPS, f"hydra.run.dir={folder}", env=gone), folder, whole)


def in_the_c_locale(folder: Path, whole: Path) -> str:
    plain = environment(LC_ALL="C", LANG="C", PYTHONUTF8=None, PYTHONIOENCODING=None)
    return ended(run(*SMALL, *STEPS, f"hydra.run.dir={folder}", env=plain), folder, whole)


def with_a_closed_output(folder: Path, whole: Path) -> str:
    words = [sys.executable, "-m", "rl4p.train", *SMALL, *STEPS, f"hydra.run.dir={folder}"]
    line = ["sh", "-c", 'exec "$@" >&-', "sh", *words]
    return ended(subprocess.run(line, capture_output=True, text=True, check=False), folder, whole)


def in_folders_with_spaces(folder: Path, whole: Path) -> str:
    working = folder.parent / "a working folder"
    working.mkdir()
    words = [*SMALL, *STEPS, "hydra.run.dir='runs of mine/the first'"]
    done = run(*words, cwd=working, env=environment(**PATHS))
    if problem := ended(done, working / "runs of mine" / "the first", whole):
        return problem
    done = run("resume='runs of mine/the first'", cwd=working, env=environment(**PATHS))
    return "" if done.returncode == 0 else f"resume: {done.stderr[-300:]}"


def from_a_wheel(folder: Path, whole: Path) -> str:
    site, wheels = folder.parent / "site", folder.parent / "wheels"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(ROOT)],
        check=True,
        capture_output=True,
    )
    wheel = str(next(wheels.glob("*.whl")))
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), wheel], check=True)
    words = [*SMALL, *STEPS, f"hydra.run.dir={folder}"]
    done = run(*words, cwd=folder.parent, env=environment(PYTHONPATH=str(site)))
    return ended(done, folder, whole)


def two_in_one_second(folder: Path, whole: Path) -> str:
    working = folder.parent / "two"
    working.mkdir()
    both = [start(*SMALL, *STEPS, cwd=working, env=environment(**PATHS)) for _ in range(2)]
    for each in both:
        _, said = each.communicate()
        if each.returncode:
            return said[-300:]
    folders = [path.parent for path in sorted(working.rglob("summary.json"))]
    if len(folders) != 2:
        return f"{len(folders)} folders have a summary"
    return next(filter(None, (difference(each, whole) for each in folders)), "")


def two_resumes(folder: Path, whole: Path) -> str:
    first = start(*SMALL, *STEPS, f"hydra.run.dir={folder}")
    while not (folder / "checkpoints" / "1").is_dir() and first.poll() is None:
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    both = [start(f"resume={folder}") for _ in range(2)]
    said = [each.communicate()[1] for each in both]
    codes = sorted(each.returncode for each in both)
    if codes == [0, 0]:  # the second began after the first had ended, and found nothing to do
        return difference(folder, whole)
    if codes != [0, 2]:
        return f"exit codes {codes}: {said}"
    refusal = next(text for each, text in zip(both, said, strict=True) if each.returncode == 2)
    if refusal.count("\n") != 1:
        return f"no single sentence: {refusal[-300:]}"
    return difference(folder, whole)


def ended(done: subprocess.CompletedProcess, folder: Path, whole: Path) -> str:
    """Returns why a run is not like the whole one, or ""."""
    if done.returncode:
        return f"exit code {done.returncode}: {done.stderr[-300:]}"
    if "Traceback" in done.stderr:
        return f"a traceback: {done.stderr[-300:]}"
    return difference(folder, whole)


CASES: tuple[Callable[[Path, Path], str], ...] = (
    without_home,
    in_the_c_locale,
    with_a_closed_output,
    in_folders_with_spaces,
    from_a_wheel,
    two_in_one_second,
    two_resumes,
)


def main() -> int:
    problems = {}
    with tempfile.TemporaryDirectory() as temporary:
        whole = Path(temporary) / "whole"
        run(*SMALL, *STEPS, f"hydra.run.dir={whole}")
        if not trains(whole) or summary(whole)["status"] != "finished":
            return tell("surroundings", "a run that trains", "it did not", held=False)
        for case in CASES:
            place = Path(temporary) / case.__name__
            place.mkdir()
            if problem := case(place / "run", whole):
                problems[case.__name__] = problem
    asked = f"{len(CASES)} surroundings: exit code 0, no traceback, every digit the same"
    return tell("surroundings", asked, problems or len(CASES), held=not problems)


if __name__ == "__main__":
    sys.exit(main())
