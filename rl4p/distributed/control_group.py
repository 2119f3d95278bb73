"""Limits for all processes of a sandbox, and for what the kernel keeps for them: cgroups.

A resource limit counts the address space of one process. A cgroup also counts its files in /tmp,
its page tables, and the buffers of its pipes, and it counts the processes of the superuser too. It
needs a folder of cgroups that this user may write: as the superuser of a container, or in a session
of systemd that delegates memory.

Source: the documents cgroup-v1/memory, cgroup-v1/pids and cgroup-v2 of Linux.
"""

import contextlib
import functools
import itertools
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

Controller = Literal["memory", "pids"]

ROOT = Path("/sys/fs/cgroup")
NAME = "rl4p-sandbox-"
LIMITS = {  # by controller, the files of version 2 and of version 1
    "memory": ("memory.max", "memory.limit_in_bytes"),
    "pids": ("pids.max",),
}
LARGE = {"memory": 2**30, "pids": 2**20}  # limits for a first attempt
SWAP = {"memory.swap.max": "0", "memory.memsw.limit_in_bytes": None}  # None: the same limit
ENTER = ("/bin/sh", "-c", 'echo 0 >"$0/cgroup.procs" && exec "$@"')  # then: the group, a command
REMOVAL_SECONDS = 5.0
numbers = itertools.count()
leftovers: set[Path] = set()
lock = threading.Lock()


class Popen(subprocess.Popen[bytes]):
    """A process in groups, which are removed when it ends."""

    groups: Sequence[Path] = ()

    def wait(self, timeout: float | None = None) -> int:
        status = super().wait(timeout)
        groups, self.groups = self.groups, ()
        for group in groups:
            remove(group)
        return status

    def close(self) -> None:
        """Kills the process and all that it has started, and waits for it."""
        if self.poll() is None:  # otherwise its number may be another process's by now
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        for pipe in filter(None, (self.stdin, self.stdout, self.stderr)):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@functools.cache
def parent(controller: Controller = "memory") -> Path | None:
    """Returns the folder in which this process may make groups with a limit, or None."""
    with contextlib.suppress(OSError):
        for folder in candidates(Path("/proc/self/cgroup").read_text(), ROOT, controller):
            with contextlib.suppress(OSError):
                remove_leftovers(folder)
                path = Path(tempfile.mkdtemp(prefix=f"{NAME}{os.getpid()}-", dir=folder))
                try:
                    limit(path, LARGE[controller], controller)
                    if (
                        subprocess.run([*ENTER, path, "true"], stderr=subprocess.DEVNULL).returncode
                        == 0
                    ):
                        return folder
                finally:
                    path.rmdir()
    return None


def candidates(own: str, root: Path, controller: Controller = "memory") -> list[Path]:
    """Returns the folders in which this process could make groups.

    Args:
      own: the content of /proc/self/cgroup.
      root: the folder of all cgroups.
    """
    folders = []
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):  # version 1
            folders.append(root / controller / path.lstrip("/"))
        elif not controllers:
            # In version 2, a group with processes has no groups with limits, unless it is the root.
            group = root / path.lstrip("/")
            folders += [group, group.parent] if group != root else [group]
    return folders


def make(memory: int, processes: int | None = None) -> tuple[Path, ...]:
    """Returns new groups with a limit in bytes, and maybe of processes; none where none can be.

    Version 2 has one group for both limits, version 1 one for each. A limit is left out where only
    the other can be set (`parent`).
    """
    limits: dict[Path, dict[Controller, int]] = {}
    wanted: dict[Controller, int | None] = {"memory": memory, "pids": processes}
    for controller, value in wanted.items():
        if value is not None and (folder := parent(controller)) is not None:
            limits.setdefault(folder, {})[controller] = value
    with lock:
        for path in list(leftovers):
            remove(path, seconds=0.0)
    name = f"{NAME}{os.getpid()}-{next(numbers)}"
    made = [folder / name for folder in limits]
    try:
        for path, own in zip(made, limits.values(), strict=True):
            path.mkdir()
            for controller, value in own.items():
                limit(path, value, controller)
    except OSError:
        for path in made:
            remove(path, seconds=0.0)
        return ()
    return tuple(made)


def words_to_enter(groups: Sequence[Path]) -> list[str]:
    """Returns the words before a command that put its process into groups."""
    return [word for group in groups for word in (*ENTER, str(group))]


def limit(path: Path, value: int, controller: Controller = "memory") -> None:
    """Sets a limit of a group, in bytes or processes."""
    file = next((path / name for name in LIMITS[controller] if (path / name).exists()), None)
    if file is None:
        raise FileNotFoundError(f"no limit of {controller} in {path}")
    file.write_text(str(value))
    for name, swap in SWAP.items() if controller == "memory" else ():
        if (path / name).exists():
            (path / name).write_text(str(value) if swap is None else swap)


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
