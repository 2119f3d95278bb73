"""A run folder belongs to one run, and to one process (the first of several) at a time."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rl4p.errors import InputError

RECORD = "metrics.jsonl"  # a folder that has one holds a run


@contextmanager
def only_run_in(folder: Path, *, lock: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Refuses a second run in the folder; the lock goes with the process, however it ends.

    Args:
      lock: fcntl.LOCK_SH for those who only ask, and may do so side by side.
    """
    with (folder / ".lock").open("a") as file:
        try:
            fcntl.flock(file, lock | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"Another run is going on in {folder}.") from None
        yield


def refuse_taken(key: str, folder: str, pattern: str) -> None:
    """Refuses a folder that holds a run, or runs of a sweep, before Hydra writes into it.

    Args:
      key: of the configuration, that names the folder.
      folder: where a new run, or sweep, would go.
      pattern: of the files that say that one is there.
    """
    holds = next((path.parent for path in Path(folder).glob(pattern)), None)
    if holds is not None:
        raise InputError(
            f"{key}={folder} holds a run already; go on with it by resume={holds}, or choose "
            "another folder."
        )
