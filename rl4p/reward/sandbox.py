"""A sandbox for model-written Python, made by the program bubblewrap.

Inside there are: Python's standard library and the system's libraries, read-only; an empty folder
`/tmp` of limited size; no network, no other processes, none of this user's files, no environment
variables. The code can start no process and open no socket. Its memory, CPU time and files are
limited, by resource limits everywhere, and where this user may make cgroups by one of these, which
also counts what the kernel keeps for a process.
"""

import functools
import json
import os
import platform
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from rl4p.reward import memory_group, sandbox_child, sandbox_tester
from rl4p.reward.seccomp import only_ordinary_calls

Kind = Literal["bubblewrap", "none"]
SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin")
ALONE = "runs the model's code with all rights of this user"
FILES = 64 * 2**20  # bytes in /tmp, and in one file
COUNT = 4096  # files and folders in /tmp
THREADS = 256  # of one process, where the kernel counts them for each sandbox (5.14)
PLACE = "/sys"  # where a /tmp with both limits is mounted for bubblewrap; nobody needs it there
PROBE_SECONDS = 60.0
LARGEST_OUTPUT = 2**20  # bytes


@dataclass(frozen=True, kw_only=True)
class ProcessLimits:
    """The limits of one process.

    Attributes:
      memory: bytes of its address space.
      seconds: its CPU time.
    """

    memory: int
    seconds: float


def problem(kind: Kind) -> str | None:
    """Returns a sentence that says why this sandbox cannot be used here, or None if it can."""
    return None if kind == "none" else bubblewrap_problem()


@functools.cache
def bubblewrap_problem() -> str | None:
    """Runs a program in a sandbox once, and returns a sentence if that fails, else None."""
    instead = f"or set sandbox=none, which {ALONE}"
    limits = ProcessLimits(memory=2**30, seconds=10.0)
    try:
        with closing(start("bubblewrap", {"mode": "probe"}, limits)) as process:
            out, errors = process.popen.communicate(timeout=PROBE_SECONDS)
    except FileNotFoundError:
        return (
            "sandbox=bubblewrap needs the program bwrap, which is not installed: install it "
            f"(apt install bubblewrap), {instead}."
        )
    except subprocess.TimeoutExpired:
        return f"bwrap did not answer: repair bubblewrap, {instead}."
    if out != b"ready":
        lines = errors.decode(errors="replace").strip().splitlines() or ["it ended at once"]
        return (
            f"bwrap cannot make a sandbox on this machine ({lines[-1][:200]}): allow it "
            f"unprivileged user namespaces, {instead}."
        )
    return None


class Popen(subprocess.Popen[bytes]):
    """A process in a cgroup (`memory_group.py`), which is removed when the process ends."""

    group: Path | None = None

    def wait(self, timeout: float | None = None) -> int:
        status = super().wait(timeout)
        if self.group is not None:
            group, self.group = self.group, None
            memory_group.remove(group)
        return status


class Process:
    """A sandboxed process. `close` kills it and all that it has started."""

    def __init__(self, popen: Popen):
        self.popen = popen

    def close(self) -> None:
        if self.popen.poll() is None:
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()
        for pipe in (self.popen.stdout, self.popen.stderr):
            if pipe is not None:
                pipe.close()


def start(
    kind: Kind,
    settings: Mapping[str, Any],
    limits: ProcessLimits,
    *,
    stdin: BinaryIO | int = subprocess.DEVNULL,
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
    inherited: Sequence[int] = (),
) -> Process:
    """Starts Python on the program `sandbox_child.py` with `sandbox_tester.py`.

    Args:
      settings: the arguments of `sandbox_child.main`, without the limits.
      inherited: the files that the process may use, by the same numbers as here.

    Raises:
      FileNotFoundError: there is no bwrap.
    """
    limited = {"memory": limits.memory, "seconds": limits.seconds, "file_bytes": FILES}
    limited["threads"] = THREADS if kind == "bubblewrap" and counts_threads() else None
    texts = [
        Path(str(each.__file__)).read_text("utf-8") for each in (sandbox_child, sandbox_tester)
    ]
    # One program, in which the import of one part by the other has no place.
    lines = [line for line in "".join(texts).splitlines() if not line.startswith("from rl4p.")]
    code = "\n".join([*lines, "main(sys.argv[1])"])
    python = os.path.realpath(sys.executable)
    # -I and -S: no variables, no user's folder, no site-packages.
    command = [python, "-I", "-S", "-B", "-c", code, json.dumps({**settings, **limited})]
    popen = spawn(
        kind,
        command,
        memory=limits.memory,
        environment={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        inherited=inherited,
    )
    return Process(popen)


def counts_threads() -> bool:
    """Returns whether the kernel counts the threads of a user in each namespace of users alone."""
    release = re.match(r"(\d+)\.(\d+)", platform.release())
    return release is not None and (int(release[1]), int(release[2])) >= (5, 14)


def spawn(
    kind: Kind,
    command: Sequence[str],
    *,
    memory: int,
    environment: Mapping[str, str],
    stdin: BinaryIO | int,
    stdout: int,
    stderr: BinaryIO | int,
    inherited: Sequence[int] = (),
    readable: Sequence[Path] = (),
) -> Popen:
    """Starts a program in a sandbox, and in a session of its own. Its pipes have no buffers.

    A sandbox ends with the thread that started it (`--die-with-parent`).

    Args:
      memory: bytes of all processes in the sandbox, its files and the kernel's data for it.
      inherited: the files that the program may use, by the same numbers as here.
      readable: the files and folders that it may read besides the system's.

    Raises:
      FileNotFoundError: there is no bwrap.
    """
    with tempfile.TemporaryFile() as rules:
        files, prefix, group = list(inherited), list[str](), None
        if kind == "bubblewrap":
            allowed, seccomp = only_ordinary_calls(), None
            if allowed is not None:
                rules.write(allowed)
                rules.seek(0)
                seccomp = rules.fileno()
                files.append(seccomp)
            prefix = bubblewrap(seccomp, readable)
            if (group := memory_group.make(memory)) is not None:
                prefix = [*memory_group.ENTER, str(group), *prefix]
        try:
            # Within `with`: bwrap inherits the open file of rules, which has no name.
            popen = Popen(
                [*prefix, *command],
                bufsize=0,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=files,
                env=environment,
                start_new_session=True,
            )
        except BaseException:
            if group is not None:
                memory_group.remove(group)
            raise
        popen.group = group
        return popen


def output(process: subprocess.Popen[bytes], until: float) -> tuple[bytes, bool]:
    """Returns the output of a process until a time, and whether it then ended without an error."""
    assert process.stdout is not None
    written, ended = bytearray(), False
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not ended and selector.select(max(0.0, until - time.monotonic())):
            part = os.read(process.stdout.fileno(), 1 << 16)
            written += part
            if len(written) > LARGEST_OUTPUT:
                return bytes(written), False
            ended = not part
    try:
        return bytes(written), ended and process.wait(max(0.0, until - time.monotonic())) == 0
    except subprocess.TimeoutExpired:
        return bytes(written), False


@functools.cache
def with_counted_files() -> tuple[str, ...]:
    """Returns the start of a command that mounts a /tmp with a limit of files, or nothing.

    bubblewrap itself can limit the bytes only, and the kernel keeps a KiB for each file. The mount
    is in a namespace of its own, which not every machine allows.
    """
    unshare, mount = shutil.which("unshare"), shutil.which("mount")
    if unshare is None or mount is None:
        return ()
    script = f"{mount} -t tmpfs -o size={FILES},nr_inodes={COUNT},mode=0755 tmpfs {PLACE} && "
    command = (
        unshare,
        "--user",
        "--map-root-user",
        "--mount",
        "/bin/sh",
        "-c",
        f'{script}exec "$@"',
    )
    attempt = subprocess.run([*command, "sh", "true"], stderr=subprocess.DEVNULL)
    return (*command, "sh") if attempt.returncode == 0 else ()


def bubblewrap(seccomp: int | None, readable: Sequence[Path] = ()) -> list[str]:
    """Returns the command that makes the sandbox, up to the program to run in it.

    Args:
      seccomp: the file of the filter of system calls.
      readable: the files and folders that the program may read besides the system's.

    Raises:
      FileNotFoundError: there is no bwrap.
    """
    # Found here, because the program itself may have another PATH.
    if (program := shutil.which("bwrap")) is None:
        raise FileNotFoundError("the program bwrap is not on the PATH")
    counted = with_counted_files()
    command = [*counted]
    command += [program, "--unshare-all", "--die-with-parent", "--new-session"]
    command += ["--uid", "65534", "--gid", "65534", "--cap-drop", "ALL", "--hostname", "sandbox"]
    for folder in map(Path, SYSTEM):
        if folder.is_symlink():
            command += ["--symlink", str(folder.readlink()), str(folder)]
        elif folder.is_dir():
            command += ["--ro-bind", str(folder), str(folder)]
    # What bubblewrap makes itself, the root and /dev (with /dev/shm), is in memory of no limit.
    command += ["--dev", "/dev", "--remount-ro", "/dev"]
    command += ["--bind", PLACE, "/tmp"] if counted else ["--size", str(FILES), "--tmpfs", "/tmp"]
    command += ["--chdir", "/tmp"]
    # A virtual environment names Python's folder as it was given, maybe by a symbolic link.
    python = {Path(sys.base_prefix), Path(sys.base_prefix).resolve()}
    own = [path for path in python if not any(path.is_relative_to(folder) for folder in SYSTEM)]
    for path in map(str, [*own, *readable]):  # after /tmp, which may hold it
        command += ["--ro-bind", path, path]
    command += ["--remount-ro", "/"]
    return [*command, *([] if seccomp is None else ["--seccomp", str(seccomp)])]
