"""A memory limit for all processes of a sandbox, and for what the kernel keeps for them: a cgroup.

A resource limit counts the address space of one process. A cgroup also counts its files in /tmp,
its page tables, and the buffers of its pipes. It needs a folder of cgroups that this user may
write: as the superuser of a container, or in a session of systemd that delegates memory.

Source: the documents cgroup-v1/memory and cgroup-v2 of Linux.
"""

import contextlib
import functools
import itertools
import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
NAME = "rl4p-sandbox-"
LIMITS = ("memory.max", "memory.limit_in_bytes")  # of version 2, and of version 1
SWAP = {"memory.swap.max": "0", "memory.memsw.limit_in_bytes": None}  # None: the same limit
ENTER = ("/bin/sh", "-c", 'echo 0 >"$0/cgroup.procs" && exec "$@"')  # then: the group, a command
REMOVAL_SECONDS = 5.0
numbers = itertools.count()
leftovers: set[Path] = set()
lock = threading.Lock()


@functools.cache
def parent() -> Path | None:
    """Returns the folder in which this process may make groups with a memory limit, or None."""
    with contextlib.suppress(OSError):
        for folder in candidates(Path("/proc/self/cgroup").read_text(), ROOT):
            with contextlib.suppress(OSError):
                remove_leftovers(folder)
                path = Path(tempfile.mkdtemp(prefix=f"{NAME}{os.getpid()}-", dir=folder))
                try:
                    limit(path, 2**30)
                    if (
                        subprocess.run([*ENTER, path, "true"], stderr=subprocess.DEVNULL).returncode
                        == 0
                    ):
                        return folder
                finally:
                    path.rmdir()
    return None


def candidates(own: str, root: Path) -> list[Path]:
    """Returns the folders in which this process could make groups.

    Args:
      own: the content of /proc/self/cgroup.
      root: the folder of all cgroups.
    """
    folders = []
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):  # version 1
            folders.append(root / "memory" / path.lstrip("/"))
        elif not controllers:
            # In version 2, a group with processes has no groups with limits, unless it is the root.
            group = root / path.lstrip("/")
            folders += [group, group.parent] if group != root else [group]
    return folders


def make(memory: int) -> Path | None:
    """Returns a new group with a limit in bytes; None where there can be none."""
    if (folder := parent()) is None:
        return None
    with lock:
        for path in list(leftovers):
            remove(path, seconds=0.0)
    path = folder / f"{NAME}{os.getpid()}-{next(numbers)}"
    try:
        path.mkdir()
        limit(path, memory)
    except OSError:
        remove(path, seconds=0.0)
        return None
    return path


def limit(path: Path, memory: int) -> None:
    """Sets the limit of a group."""
    file = next((path / name for name in LIMITS if (path / name).exists()), None)
    if file is None:
        raise FileNotFoundError(f"no limit of memory in {path}")
    file.write_text(str(memory))
    for name, value in SWAP.items():
        if (path / name).exists():
            (path / name).write_text(str(memory) if value is None else value)


def remove(path: Path, seconds: float = REMOVAL_SECONDS) -> None:
    """Removes a group whose processes have been killed, as soon as they are gone.

    A group with processes cannot be removed. After so many seconds it is left to a later call.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            path.rmdir()
        except FileNotFoundError:
            break
        except OSError:
            if time.monotonic() >= until:
                leftovers.add(path)
                return
            time.sleep(0.01)
        else:
            break
    leftovers.discard(path)


def remove_leftovers(folder: Path) -> None:
    """Removes the groups of processes that no longer exist."""
    for path in folder.glob(f"{NAME}*"):
        number = path.name.removeprefix(NAME).partition("-")[0]
        if number.isdigit() and not Path("/proc", number).exists():
            with contextlib.suppress(OSError):
                path.rmdir()
