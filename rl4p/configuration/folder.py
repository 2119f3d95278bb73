"""The lock of a run folder: only one run, and only its first process, uses a folder at a time."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rl4p.errors import InputError

RECORD = "metrics.jsonl"  # its presence marks the folder of a run


@contextmanager
def only_run_in(folder: Path, *, lock: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Refuses a second run in the folder. The lock ends with the process, however it ends.

    Args:
      lock: fcntl.LOCK_SH only tests for a run; several processes may hold it together.
    """
    with (folder / ".lock").open("a") as file:
        try:
            fcntl.flock(file, lock | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"Another run is using {folder}.") from None
        yield


def refuse_taken(key: str, folder: str, pattern: str) -> None:
    """Refuses a folder that holds a run or a sweep already, before Hydra writes into it.

    Args:
      key: the configuration key that names the folder.
      folder: the folder for the new run or sweep.
      pattern: a glob pattern of the files that mark a run.
    """
    holds = next((path.parent for path in Path(folder).glob(pattern)), None)
    if holds is not None:
        raise InputError(
            f"{key}={folder} already contains a run: continue it with resume={holds}, or choose "
            "another folder."
        )
