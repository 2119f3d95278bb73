"""Tests of the sandbox: what it forbids, and that ordinary programs run in it."""

import os
import platform
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rl4p.distributed import control_group
from rl4p.reward import sandbox
from rl4p.reward.sandbox import (
    FILES,
    ProcessLimits,
    output,
    problem,
    start,
    with_counted_files,
)

ALLOW, EPERM, ENOSYS, DONE, KILL = 0x7FFF0000, 0x50001, 0x50026, 0x50000, 0x80000000
HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")


def decision(rules, architecture, number, *arguments):
    """Runs a filter as the kernel does, and returns its verdict."""
    data, at, held = {0: number, 4: architecture}, 0, 0
    data |= {16 + 8 * index: each for index, each in enumerate([*arguments, 0, 0][:2])}
    while True:
        code, yes, no, k = rules[at]
        at += 1
        if code == 0x20:
            held = data[k]
        elif code == 0x06:
            return k
        else:
            taken = {0x15: held == k, 0x35: held >= k, 0x45: bool(held & k)}[code]
            at += yes if taken else no


@pytest.mark.parametrize(
    ("machine", "architecture", "denied", "allowed", "decided"),
    [
        # denied: fork, vfork, ptrace, unshare, memfd_create, shmget, semget, mq_open, socket,
        # sendmsg, setsockopt, inotify_init1, timer_create, seccomp, keyctl, an unknown number
        (
            *("x86_64", 0xC000003E),
            (57, 58, 101, 272, 319, 29, 64, 240, 41, 46, 54, 294, 222, 317, 250, 400),
            (0, 1, 2, 9, 59, 231, 436),
            (56, 72, 16, 157, 53),
        ),
        (
            *("aarch64", 0xC00000B7),
            (117, 97, 279, 194, 190, 180, 198, 211, 208, 26, 107, 277, 219, 400),
            (63, 64, 56, 222, 221, 94, 436),
            (220, 25, 29, 167, 199),
        ),
    ],
)
def test_ordinary_calls_are_allowed_and_no_others(
    monkeypatch, machine, architecture, denied, allowed, decided
):
    monkeypatch.setattr("platform.machine", lambda: machine)
    content = sandbox.only_ordinary_calls()
    rules = list(struct.iter_unpack("HBBI", content))
    assert len(content) == 8 * len(rules)
    assert len(rules) < 4096  # the kernel's limit
    for number in denied:
        assert decision(rules, architecture, number) == EPERM
    for number in allowed:  # read, write, open, mmap, execve, exit_group, close_range
        assert decision(rules, architecture, number) == ALLOW
    clone, fcntl, ioctl, prctl, socketpair = decided
    assert decision(rules, architecture, clone, 0x10000 | 0xF00) == ALLOW
    assert decision(rules, architecture, clone, 17) == EPERM  # SIGCHLD: fork
    verdicts = {fcntl: {3: ALLOW, 6: DONE, 7: DONE, 1024: EPERM, 1031: EPERM, 1032: ALLOW}}
    verdicts |= {ioctl: {0x5421: ALLOW, 0x5412: 0x50019}}  # TIOCSTI
    for number, by_value in verdicts.items():
        for value, verdict in by_value.items():
            assert decision(rules, architecture, number, 0, value) == verdict
    for value, verdict in {15: ALLOW, 22: EPERM, 38: EPERM}.items():  # PR_SET_SECCOMP
        assert decision(rules, architecture, prctl, value) == verdict
    for family, verdict in {1: ALLOW, 2: EPERM}.items():
        assert decision(rules, architecture, socketpair, family) == verdict
    for new in (435, 425, 447, 9999):  # clone3, io_uring_setup, memfd_secret
        assert decision(rules, architecture, new) == ENOSYS
    assert decision(rules, architecture, 0x40000000 | 57) == EPERM
    assert decision(rules, 0x40000003, 2) == KILL  # 32 bits


@pytest.mark.skipif(not HEADER.exists(), reason="no header of the system's calls")
def test_the_numbers_are_the_numbers_of_linux():
    system = dict(re.findall(r"#define __NR_(\w+) (\d+)", HEADER.read_text()))
    table = [call.split() for call in sandbox.CALLS.replace("\n", " ").split(",") if call.strip()]
    for name, number, *_ in table:
        assert system.get(name, number) == number, name
    assert len({number for _, number, *_ in table}) == len(table) > 150


def test_an_unknown_machine_has_no_filter(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "pdp11")
    assert sandbox.only_ordinary_calls() is None


WITHOUT = problem("bubblewrap")
needs_bubblewrap = pytest.mark.skipif(WITHOUT is not None, reason=str(WITHOUT))


@pytest.fixture
def attempt(tmp_path):
    """Runs code in a sandbox, and returns the last line of what it prints."""

    def attempt(code, seconds=10.0, memory=2**29):
        path = tmp_path / "attempt.py"
        path.write_text(code, encoding="utf-8")
        ready, signal_pipe = os.pipe()
        with path.open("rb") as file:
            settings = {"mode": "program", "code": file.fileno(), "ready": signal_pipe}
            process = start(
                "bubblewrap",
                settings,
                ProcessLimits(memory=memory, seconds=seconds),
                stderr=subprocess.STDOUT,
                inherited=[file.fileno(), signal_pipe],
            )
        os.close(signal_pipe)
        written, _ = output(process, time.monotonic() + seconds)
        process.close()
        os.close(ready)
        return written.decode().strip().rpartition("\n")[2]

    return attempt


@needs_bubblewrap
def test_code_runs_with_the_standard_library(attempt):
    assert attempt("import json, re, random; print(json.dumps([1, 2]))") == "[1, 2]"
    assert attempt("open('file', 'w').write('kept'); print(open('/tmp/file').read())") == "kept"
    threads = "import threading as t; x = t.Thread(target=print, args=('ran',)); x.start()"
    assert attempt(threads) == "ran"


@needs_bubblewrap
@pytest.mark.parametrize("filtered", [True, False])
def test_there_is_no_network(attempt, monkeypatch, filtered):
    """There is none without the filter of system calls either."""
    if not filtered:
        monkeypatch.setattr(sandbox, "only_ordinary_calls", lambda: None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()  # it listens
        code = "import socket; socket.create_connection(('127.0.0.1', {}), 2); print('connected')"
        reason = "Operation not permitted" if filtered else "Connection refused"
        assert attempt(code.format(port)).endswith(reason)
    assert "gaierror" in attempt("import socket; socket.getaddrinfo('example.com', 80)")
    if not filtered:
        names = "import socket; print(len(socket.if_nameindex()))"
        assert attempt(names) == "1"  # its own loopback


@needs_bubblewrap
def test_ordinary_programs_run(attempt):
    programs = {
        "import asyncio; print(asyncio.run(asyncio.to_thread(abs, -3)))": "3",
        "from concurrent.futures import ThreadPoolExecutor as T; "
        "print(sum(T(8).map(abs, (1, -2))))": "3",
        "import socket; a, b = socket.socketpair(); a.sendall(b'x'); print(b.recv(1))": "b'x'",
        "import sqlite3 as s; c = s.connect('x'); c.execute('create table t (a)'); c.commit(); "
        "c.execute('insert into t values (3)'); c.commit(); "
        "print(*c.execute('select * from t'))": "(3,)",
        "import tempfile as t, shutil, os; d = t.mkdtemp(); open(d + '/a', 'w').write('é🙂'); "
        "shutil.copy(d + '/a', d + '/b'); os.replace(d + '/b', d + '/c'); "
        "print(open(d + '/c').read(), sorted(os.listdir(d)))": "é🙂 ['a', 'c']",
        "import signal as s, time; s.signal(s.SIGALRM, print); s.setitimer(s.ITIMER_REAL, 0.01); "
        "time.sleep(0.1); print(len(__import__('secrets').token_hex(4)))": "8",
        "import mmap, ctypes as c; m = mmap.mmap(-1, 9); m[0] = 65; "
        "print(m[:1], c.CDLL(None).abs(-3))": "b'A' 3",
        "import fcntl; f = open('x', 'w'); fcntl.lockf(f, 2); fcntl.flock(f, 2); "
        "print('held')": "held",
    }
    for program, printed in programs.items():
        assert attempt(program) == printed


@needs_bubblewrap
def test_files_of_the_user_cannot_be_read_or_written(attempt, tmp_path, monkeypatch):
    secret = tmp_path / "secret"
    secret.write_text("password")
    for path in (secret, Path.home(), "/etc/passwd", __file__, "/proc/self/environ", "/var"):
        assert "FileNotFoundError" in attempt(f"import os; print(os.stat({str(path)!r}))") or (
            # A folder above Python's own is there, and nothing else is in it.
            attempt(f"import os; print(len(os.listdir({str(path)!r})))") == "1"
        )
    for path in ("/usr/x", "/x", "/dev/x", "/dev/shm/x", f"{sys.base_prefix}/x"):
        error = attempt(f"open({path!r}, 'w')")
        assert "Read-only file system" in error or "Permission denied" in error
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert "secret" not in attempt("import os; print(dict(os.environ))")


@needs_bubblewrap
@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="no table of calls")
def test_no_process_can_be_started(attempt):
    # At most 32 processes: under some mutants, nothing stops the bomb.
    bomb = "import os\nfor _ in range(5):\n    os.fork()"
    assert attempt(bomb) == "PermissionError: [Errno 1] Operation not permitted"
    shell = "import subprocess; subprocess.run(['/bin/sh', '-c', 'echo ran'])"
    assert attempt(shell).startswith("PermissionError")
    spawn = "import multiprocessing as m; m.set_start_method('spawn'); m.Process().start()"
    assert attempt(spawn).startswith("PermissionError")
    assert attempt("import os; os.memfd_create('x'); print('made')").startswith("PermissionError")


@needs_bubblewrap
def test_other_processes_cannot_be_seen_or_killed(attempt):
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as bystander:
        for pid in (bystander.pid, os.getpid()):
            error = attempt(f"import os; os.kill({pid}, 9); print('killed')")
            assert error == "ProcessLookupError: [Errno 3] No such process"
        attempt("import os, signal\nfor pid in (-1, 0, 1, os.getppid()):\n    os.kill(pid, 9)")
        assert bystander.poll() is None
        bystander.kill()


@needs_bubblewrap
def test_memory_and_files_are_limited(attempt):
    assert attempt("len(bytearray(2**30))") == "MemoryError"
    assert attempt("x = 'a'\nfor _ in range(32): x += x") == "MemoryError"
    large = f"f = open('x', 'wb'); f.write(bytes(2**20) * {FILES // 2**20 + 1})"
    assert attempt(large).startswith("OSError")
    many = (
        "n = 0\ntry:\n    while n < 1000:\n        open(str(n), 'wb').write(bytes(2**20)); n += 1\n"
        "except OSError as error: print(n, error)"
    )
    count, _, reason = attempt(many).partition(" ")
    assert 0 < int(count) <= FILES // 2**20
    assert "No space left" in reason
    threads = (
        "import threading, time\nfor n in range(2000):\n"
        "    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    )
    assert attempt(threads) == "RuntimeError: can't start new thread"


SYSTEM_CALLS = """
import os, socket, fcntl, ctypes
libc = ctypes.CDLL(None, use_errno=True)
def failure(call, *args):
    try: return call(*args)
    except OSError as error: return error.errno
a, b = socket.socketpair()
print([
    libc.semget(0, 32000, 0o600), libc.msgget(0, 0o1600), libc.shmget(0, 9, 0o1600),
    libc.mq_open(b"/a", 0o102, 0o600, 0), libc.inotify_init1(0), libc.timer_create(0, 0, 0),
    failure(socket.socket), failure(a.setsockopt, 1, 7, 1 << 20), failure(a.sendmsg, [b"x"]),
    failure(fcntl.fcntl, os.pipe()[1], 1031, 1 << 20),
])
"""


@needs_bubblewrap
@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="no table of calls")
def test_the_kernel_keeps_no_memory_for_the_code(attempt):
    assert attempt(SYSTEM_CALLS) == str([-1] * 6 + [1] * 4)


@needs_bubblewrap
@pytest.mark.skipif(not with_counted_files(), reason="no mount in a namespace of its own")
def test_files_are_counted(attempt):
    files = "n = 0\ntry:\n    while n < 9000: open(str(n), 'w').close(); n += 1\n"
    files += "except OSError as error: print(n < 4096, error.strerror)"
    assert attempt(files) == "True No space left on device"


@needs_bubblewrap
@pytest.mark.skipif(control_group.parent() is None, reason="no folder of cgroups")
def test_the_group_of_a_sandbox_counts_all_its_memory(attempt):
    """Page tables: many small mappings far apart, each of which needs two pages more."""
    code = (
        "import ctypes\nlibc = ctypes.CDLL(None); libc.mmap.restype = ctypes.c_void_p\n"
        "print('began', flush=True)\n"
        "for n in range(1, 30000):\n"
        "    at = libc.mmap(ctypes.c_void_p(n << 30), 4096, 3, 0x100022, -1, 0)\n"
        "    ctypes.memset(at, 1, 1)\nprint('had all')"
    )
    own = f"{control_group.NAME}{os.getpid()}-*"  # other test processes have groups beside them
    before = set(control_group.parent().glob(own))
    assert attempt(code, memory=2**28) == "began"
    assert attempt(code, memory=2**30) == "had all"
    left = set(control_group.parent().glob(own)) - before
    assert left <= control_group.leftovers  # on a busy machine a later call removes them
    for path in left:
        control_group.remove(path, seconds=60)
    assert set(control_group.parent().glob(own)) <= before


@needs_bubblewrap
def test_time_is_limited(attempt):
    began = time.monotonic()
    assert attempt("print('began', flush=True)\nwhile True: pass", seconds=2.0) == "began"
    assert attempt("print('began', flush=True)\n9**9**9", seconds=2.0) == "began"
    sleep = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True)"
    assert attempt(f"{sleep}; time.sleep(60)", seconds=2.0) == "1"
    assert time.monotonic() - began < 50


@needs_bubblewrap
def test_a_sandbox_ends_with_its_parent():
    code = (
        "import os, sys; from rl4p.reward.sandbox import *; import subprocess\n"
        "r, w = os.pipe(); f = open(sys.argv[1], 'rb')\n"
        "s = {'mode': 'program', 'code': f.fileno(), 'ready': w}\n"
        "x = start('bubblewrap', s, ProcessLimits(memory=2**29, seconds=60), stdout=1, "
        "inherited=[f.fileno(), w])\n"
        "print(x.pid, flush=True); os.read(r, 1); x.wait()"
    )
    path = Path(os.devnull).parent / "null"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE
    ) as parent:
        pid = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    until = time.monotonic() + 20
    while Path(f"/proc/{pid}/exe").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}/exe").exists()


@needs_bubblewrap
def test_a_sandbox_may_be_started_in_any_thread(attempt):
    outputs = []
    threads = [
        threading.Thread(target=lambda: outputs.append(attempt("print('ran')"))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outputs == ["ran"] * 3


@pytest.fixture
def unknown():
    """Nothing is known about bubblewrap, before the test and after it."""
    problem.cache_clear()
    yield
    problem.cache_clear()


@pytest.mark.usefixtures("unknown")
def test_without_bubblewrap_the_sentence_says_what_to_do(monkeypatch):
    monkeypatch.setattr(sandbox.shutil, "which", lambda program: None)
    assert problem("bubblewrap") == (
        "sandbox=bubblewrap needs the program bwrap, which is not installed: install it (apt "
        "install bubblewrap), or set sandbox=none, which runs the model's code with all rights of "
        "this user."
    )
    assert problem("none") is None


@pytest.mark.usefixtures("unknown")
def test_where_no_sandbox_is_allowed_the_sentence_says_what_to_do(monkeypatch):
    def refuses(*given):
        return ["/bin/sh", "-c", "echo bwrap: No permissions to create new namespace >&2; exit 1"]

    monkeypatch.setattr(sandbox, "bubblewrap", refuses)
    assert "machine (bwrap: No permissions to create new namespace): allow it" in str(
        problem("bubblewrap")
    )
