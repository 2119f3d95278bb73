"""A sandbox for model-written Python, made by the program bubblewrap.

Inside there are: Python's standard library and the system's libraries, read-only; an empty folder
`/tmp` of limited size; no network, no other processes, none of this user's files, no environment
variables. The code can start no process and open no socket. Its memory, CPU time and files are
limited, by resource limits everywhere, and where this user may make cgroups by one of these, which
also counts what the kernel keeps for a process.

A seccomp filter allows the system calls of an ordinary Python program, and no others. Resource
limits count the address space of a process. They do not count what the kernel keeps for it:
semaphores, message queues, anonymous files, watches, keys, filters, the buffers of sockets. Nor do
they stop a fork bomb of the superuser, under whom containers often run. A list of what is denied is
never complete, so `CALLS` is a list of what is allowed: files, memory, threads, time, signals,
waiting, and pairs of connected sockets (for asyncio).

Sources: the manual pages seccomp(2) and bpf(2), and the tables of system calls of Linux.
"""

import errno
import functools
import json
import os
import platform
import re
import selectors
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from rl4p.distributed import control_group
from rl4p.distributed.control_group import Popen
from rl4p.reward import sandbox_child

# Each name with its number on x86_64 (asm/unistd_64.h) and on aarch64 (asm-generic/unistd.h), which
# lacks the oldest calls. In this order: files; waiting for files, pipes, and pairs of sockets;
# memory; threads, and the one program that bubblewrap starts; signals and time; what a process may
# know and limit.
CALLS = """
read 0 63, write 1 64, open 2, openat 257 56, close 3 57, close_range 436 436, stat 4, lstat 6,
fstat 5 80, newfstatat 262 79, statx 332 291, statfs 137 43, fstatfs 138 44, lseek 8 62,
pread64 17 67, pwrite64 18 68, readv 19 65, writev 20 66, preadv 295 69, pwritev 296 70,
preadv2 327 286, pwritev2 328 287, sendfile 40 71, dup 32 23, copy_file_range 326 285, dup2 33,
dup3 292 24, flock 73 32, access 21, faccessat 269 48, faccessat2 439 439, umask 95 166,
fsync 74 82, fdatasync 75 83, truncate 76 45, ftruncate 77 46, fallocate 285 47,
fadvise64 221 223, getdents 78, getdents64 217 61, getcwd 79 17, chdir 80 49, fchdir 81 50,
rename 82, renameat 264 38, renameat2 316 276, mkdir 83, mkdirat 258 34, rmdir 84, creat 85,
link 86, linkat 265 37, unlink 87, unlinkat 263 35, symlink 88, symlinkat 266 36, readlink 89,
readlinkat 267 78, mknod 133, mknodat 259 33, chmod 90, fchmod 91 52, fchmodat 268 53,
fchmodat2 452 452, chown 92, fchown 93 55, lchown 94, fchownat 260 54, utime 132, utimes 235,
futimesat 261, utimensat 280 88, getxattr 191 8, lgetxattr 192 9, fgetxattr 193 10,
listxattr 194 11, llistxattr 195 12, flistxattr 196 13, pipe 22, pipe2 293 59, poll 7,
ppoll 271 73, select 23, pselect6 270 72, epoll_create 213, epoll_create1 291 20,
epoll_ctl 233 21, epoll_wait 232, epoll_pwait 281 22, epoll_pwait2 441 441, eventfd 284,
eventfd2 290 19, sendto 44 206, recvfrom 45 207, shutdown 48 210, getsockname 51 204,
getpeername 52 205, getsockopt 55 209, mmap 9 222, mprotect 10 226, munmap 11 215, mremap 25 216,
brk 12 214, madvise 28 233, msync 26 227, mincore 27 232, mlock 149 228, munlock 150 229,
membarrier 324 283, execve 59 221, exit 60 93, exit_group 231 94, gettid 186 178, futex 202 98,
set_tid_address 218 96, set_robust_list 273 99, get_robust_list 274 100, rseq 334 293,
arch_prctl 158, sched_yield 24 124, getcpu 309 168, get_mempolicy 239 236,
sched_setaffinity 203 122, sched_getaffinity 204 123, sched_getparam 143 121,
sched_getscheduler 145 120, sched_get_priority_max 146 125, sched_get_priority_min 147 126,
sched_rr_get_interval 148 127, getpriority 140 141, setpriority 141 140, wait4 61 260,
waitid 247 95, kill 62 129, tkill 200 130, tgkill 234 131, pause 34, rt_sigaction 13 134,
rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136, rt_sigtimedwait 128 137,
rt_sigsuspend 130 133, sigaltstack 131 132, signalfd4 289 74, restart_syscall 219 128, alarm 37,
getitimer 36 102, setitimer 38 103, time 201, nanosleep 35 101, clock_nanosleep 230 115,
clock_gettime 228 113, clock_getres 229 114, gettimeofday 96 169, timerfd_create 283 85,
timerfd_settime 286 86, timerfd_gettime 287 87, getpid 39 172, getppid 110 173, getuid 102 174,
getgid 104 176, geteuid 107 175, getegid 108 177, getresuid 118 148, getresgid 120 150,
getgroups 115 158, getpgid 121 155, getpgrp 111, setpgid 109 154, getsid 124 156, setsid 112 157,
capget 125 90, uname 63 160, sysinfo 99 179, times 100 153, getrusage 98 165, getrlimit 97 163,
setrlimit 160 164, prlimit64 302 261, getrandom 318 278,
"""
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# Calls of these numbers and above are newer than 2018. They are reported as missing, so that the C
# library uses older ones (for clone3: clone, whose flags a filter can read).
NEW = 424
X32 = 0x40000000  # the bit of a second table of system calls of x86_64
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
LOAD, IF_EQUAL, IF_AT_LEAST, IF_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, ERROR, KILL = 0x7FFF0000, 0x50000, 0x80000000
DENY, NO_SUCH_CALL, NO_TERMINAL = ERROR | errno.EPERM, ERROR | errno.ENOSYS, ERROR | errno.ENOTTY
DONE = ERROR  # error 0: the call returns 0 and does nothing

# Calls with an argument that decides: their numbers, the index of the argument, the verdicts for
# values of its lower half, and the verdict for all others.
DECIDED = (
    # fcntl: F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETLK, F_DUPFD_CLOEXEC, F_GETPIPE_SZ.
    # A lock (F_SETLK, F_SETLKW) takes memory and no other process could hold it, so it always
    # succeeds. Not F_SETPIPE_SZ.
    ((72, 25), 1, {**dict.fromkeys((0, 1, 2, 3, 4, 5, 1030, 1032), ALLOW), 6: DONE, 7: DONE}, DENY),
    # ioctl: TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
    (
        *((16, 29), 1),
        *(dict.fromkeys((0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451), ALLOW), NO_TERMINAL),
    ),
    # prctl: PR_SET_NAME and PR_GET_NAME, of threads. Not PR_SET_SECCOMP: filters take memory.
    ((157, 167), 0, {15: ALLOW, 16: ALLOW}, DENY),
    # socketpair: AF_UNIX
    ((53, 199), 0, {1: ALLOW}, DENY),
)
CLONE, CLONE_THREAD = (56, 220), 0x10000


def only_ordinary_calls() -> bytes | None:
    """Returns the filter as an array of struct sock_filter; None for a machine without a table.

    Threads are allowed, and no processes.
    """
    if (architecture := ARCHITECTURES.get(platform.machine())) is None:
        return None
    column = list(ARCHITECTURES).index(platform.machine())
    rules = [
        *((LOAD, 0, 0, ARCHITECTURE), (IF_EQUAL, 1, 0, architecture), (RETURN, 0, 0, KILL)),
        *((LOAD, 0, 0, NUMBER), (IF_AT_LEAST, 0, 1, X32), (RETURN, 0, 0, DENY)),
    ]
    for call in filter(None, map(str.strip, CALLS.split(","))):
        if column < len(numbers := call.split()[1:]):
            rules += [(IF_EQUAL, 0, 1, int(numbers[column])), (RETURN, 0, 0, ALLOW)]
    for numbers, argument, verdicts, otherwise in DECIDED:
        decision = [(LOAD, 0, 0, ARGUMENTS + 8 * argument)]
        for value, verdict in verdicts.items():
            decision += [(IF_EQUAL, 0, 1, value), (RETURN, 0, 0, verdict)]
        decision += [(RETURN, 0, 0, otherwise)]
        rules += [(IF_EQUAL, 0, len(decision), numbers[column]), *decision]
    rules += [
        *((IF_EQUAL, 0, 4, CLONE[column]), (LOAD, 0, 0, ARGUMENTS), (IF_BIT, 0, 1, CLONE_THREAD)),
        *((RETURN, 0, 0, ALLOW), (RETURN, 0, 0, DENY)),
        *((IF_AT_LEAST, 0, 1, NEW), (RETURN, 0, 0, NO_SUCH_CALL), (RETURN, 0, 0, DENY)),
    ]
    return b"".join(struct.pack("HBBI", *rule) for rule in rules)


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
    """The limits of one process."""

    memory: int  # bytes of its address space
    seconds: float  # its CPU time


@functools.cache
def problem(kind: Kind) -> str | None:
    """Returns a sentence that says why this sandbox cannot be used here, or None if it can."""
    if kind == "none":
        return None
    instead = f"or set sandbox=none, which {ALONE}"
    limits = ProcessLimits(memory=2**30, seconds=10.0)
    try:
        with closing(start("bubblewrap", {"mode": "probe"}, limits)) as process:
            out, errors = process.communicate(timeout=PROBE_SECONDS)
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


def start(
    kind: Kind,
    settings: Mapping[str, Any],
    limits: ProcessLimits,
    *,
    stdin: BinaryIO | int = subprocess.DEVNULL,
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
    inherited: Sequence[int] = (),
) -> Popen:
    """Starts Python on the program `sandbox_child.py`.

    Args:
      settings: the arguments of `sandbox_child.main`, without the limits.
      inherited: the files that the process may use, by the same numbers as here.

    Raises:
      FileNotFoundError: there is no bwrap.
    """
    limited = {"memory": limits.memory, "seconds": limits.seconds, "file_bytes": FILES}
    # From 5.14 on, the kernel counts the threads of a user in each namespace of users alone.
    release = re.match(r"(\d+)\.(\d+)", platform.release())
    counts_threads = release is not None and (int(release[1]), int(release[2])) >= (5, 14)
    limited["threads"] = THREADS if kind == "bubblewrap" and counts_threads else None
    code = f"{Path(sandbox_child.__file__).read_text('utf-8')}\nmain(sys.argv[1])"
    python = os.path.realpath(sys.executable)
    # -I and -S: no variables, no user's folder, no site-packages.
    command = [python, "-I", "-S", "-B", "-c", code, json.dumps({**settings, **limited})]
    return spawn(
        kind,
        command,
        memory=limits.memory,
        environment={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        inherited=inherited,
    )


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
      readable: the files and folders that it may read besides the system's.

    Raises:
      FileNotFoundError: there is no bwrap.
    """
    with tempfile.TemporaryFile() as rules:
        files, prefix, groups = list(inherited), list[str](), ()
        if kind == "bubblewrap":
            allowed, seccomp = only_ordinary_calls(), None
            if allowed is not None:
                rules.write(allowed)
                rules.seek(0)
                seccomp = rules.fileno()
                files.append(seccomp)
            prefix = bubblewrap(seccomp, readable)
            groups = control_group.make(memory)
            prefix = [*control_group.words_to_enter(groups), *prefix]
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
            for group in groups:
                control_group.remove(group)
            raise
        popen.groups = groups
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
    options = f"size={FILES},nr_inodes={COUNT},mode=0755"
    script = f'{mount} -t tmpfs -o {options} tmpfs {PLACE} && exec "$@"'
    own_mounts = (unshare, "--user", "--map-root-user", "--mount")
    command = (*own_mounts, "/bin/sh", "-c", script, "sh")
    attempt = subprocess.run([*command, "true"], stderr=subprocess.DEVNULL)
    return command if attempt.returncode == 0 else ()


def bubblewrap(seccomp: int | None, readable: Sequence[Path] = ()) -> list[str]:
    """Returns the command that makes the sandbox, up to the program to run in it.

    Args:
      seccomp: the file of the filter of system calls.
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
