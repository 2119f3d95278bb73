"""The files of the package that a value passes on its way, in a small run.

A file counts if one of its functions is called with the value while the run is built and trains
one step. For a prompt the value is an object of one of `OF_PROMPTS`, alone or as an item of a list
or tuple. For an option it is its number, which nothing else has, its name in a mapping or a word,
or an object that holds it. Functions that JAX traces count like others. A file that passes on
what holds the value, and never touches it, does not count.
"""

import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from tests.house.size import PACKAGE, ROOT

OF_PROMPTS = {
    *("Question", "Prompt", "Request", "TokenSequence", "Completion", "Episode"),
    *("Trajectories", "Rewards", "TrainingBatch"),
}
OPTION, NUMBER = "clip_high", 0.28125


def is_prompt(value: Any) -> bool:
    """Returns whether a value is a prompt, what was made of it, or a sequence of such."""
    if isinstance(value, list | tuple) and value:
        value = value[0]
    return type(value).__name__ in OF_PROMPTS


def is_option(value: Any) -> bool:
    """Returns whether a value is the option, or holds it."""
    if isinstance(value, float):
        return value == NUMBER
    if isinstance(value, str):
        return OPTION in value
    if isinstance(value, list | tuple):
        return any(isinstance(x, str | float) and is_option(x) for x in value)
    if isinstance(value, Mapping):
        return OPTION in value
    return OPTION in getattr(value, "__dict__", {})


def passed(main: Callable[[], None], value: Callable[[Any], bool]) -> set[str]:
    """Returns the files whose functions are called with a value while `main` runs."""
    files: set[str] = set()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(f"{PACKAGE}/"):
            return
        file = code.co_filename.removeprefix(f"{ROOT}/")
        count = code.co_argcount + code.co_kwonlyargcount
        names = code.co_varnames[:count]
        if file not in files and any(value(frame.f_locals.get(name)) for name in names):
            files.add(file)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        main()
    except SystemExit as error:
        if error.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return files


def way(name: str) -> set[str]:
    """Returns the files of a way, by a run in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.house.ways", name, folder]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return {line[4:] for line in done.stdout.splitlines() if line.startswith("way ")}


def main() -> None:
    """Prints the files of one way."""
    import tests.conftest  # noqa: F401  the environment of tests, before JAX is used
    from experiments.drills.small_run import SMALL
    from rl4p import train

    name, folder = sys.argv[1:]
    sys.argv = [
        "train",
        *SMALL,
        "steps=1",
        f"update.{OPTION}={NUMBER}",
        f"hydra.run.dir={folder}/run",
    ]
    for file in sorted(passed(train.main, {"prompt": is_prompt, "option": is_option}[name])):
        print("way", file)


if __name__ == "__main__":
    main()
