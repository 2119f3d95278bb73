"""Tests machines of bubblewrap: what they keep, what they forbid, and what they leave."""

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rl4p.base.errors import InputError, RunError
from rl4p.distributed import control_group
from rl4p.protocols.runtime import Image
from rl4p.rollout.runtimes import bubblewrap
from rl4p.rollout.runtimes.bubblewrap import Bubblewrap, problem
from tests.support.root_folder import write_root

needs_bubblewrap = pytest.mark.skipif(problem() is not None, reason=problem() or "")
SLEEP = "sleep 86399"  # of no other process


@pytest.fixture
def opened(tmp_path):
    machines = []

    def make(text="FROM a\nWORKDIR /app\n", task=None, **options):
        (tmp_path / "Dockerfile").write_text(text)
        image = Image(name="t", context=tmp_path, **(task or {}))
        runtime = Bubblewrap(**options)
        runtime.check(image)
        machines.append(runtime.open(image))
        return machines[-1]

    yield make
    for machine in machines:
        machine.close()


def said(machine, command, **options):
    return machine.run(command, **{"seconds": 60.0, **options}).output.decode().strip()


@needs_bubblewrap
def test_files_stay_and_processes_do_not(opened):
    machine = opened("FROM a\nWORKDIR /app\nENV A=1\n", task={"variables": {"B": "2"}})
    assert said(machine, f"echo here > file; (setsid {SLEEP} &); echo $A$B $HOME") == "12 /root"
    assert said(machine, "pwd; cat file; ls /proc | grep -c '^[0-9]'").split()[:2] == [
        "/app",
        "here",
    ]
    assert "sleep" not in said(machine, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert machine.run("exit 7", seconds=60.0).code == 7
    assert said(machine, "cat", content=b"read", variables={"A": "3"}) == "read"
    assert said(machine, "echo $A", variables={"A": "3"}) == "3"


@needs_bubblewrap
def test_what_the_dockerfile_copies_is_there(opened, tmp_path):
    (tmp_path / "main.py").write_text("print('copied')")
    machine = opened("FROM a\nWORKDIR /app\nCOPY main.py .\n")
    assert said(machine, "python3 main.py") == "copied"


@needs_bubblewrap
@pytest.mark.parametrize(
    "command",
    [
        "touch /usr/x",
        ": >>/proc/sys/kernel/core_pattern",
        "mount -t tmpfs a /tmp",
        "cat /etc/shadow",
        "chown 1:1 /tmp",
        "ls FOLDER",
        "python3 -c \"import socket; socket.create_connection(('1.1.1.1', 53), 5)\"",
        "kill -9 PROCESS",
        "touch /dev/x",
    ],
)
def test_what_a_sandbox_forbids(opened, command):
    folder, process = str(Path(__file__).parent), str(os.getpid())
    command = command.replace("FOLDER", folder).replace("PROCESS", process)
    assert opened().run(command, seconds=60.0).code not in (0, None)


@needs_bubblewrap
def test_the_disk_is_limited_and_the_machine_goes_on(opened):
    machine = opened(disk_mib=4, inodes=100)
    assert "No space left" in said(machine, "head -c 8000000 /dev/zero >full")
    assert said(machine, "rm full; echo a >full; cat full") == "a"
    assert "No space left" in said(machine, "for i in $(seq 200); do : >$i; done")
    full = machine.run("head -c 99000000 /dev/zero >/dev/shm/a", seconds=60.0)
    assert full.code == 1


@needs_bubblewrap
@pytest.mark.skipif(control_group.parent("pids") is None, reason="no folder of cgroups")
def test_processes_and_memory_are_limited_and_the_machine_goes_on(opened):
    machine = opened(processes=20, memory_mib=128)
    many = f"for i in $(seq 40); do {SLEEP} & done"  # not in bash, which tries again for 15 s
    assert "fork" in said(machine, f"sh -c {shlex.quote(many)}")
    big = "python3 -c 'x = bytearray(400 * 2**20); print(1)'"
    assert machine.run(big, seconds=60.0).code == 137
    assert said(machine, "echo well") == "well"


@needs_bubblewrap
def test_a_command_that_passes_its_time_ends_with_all_its_processes(opened):
    machine = opened()
    result = machine.run(f"setsid {SLEEP} & {SLEEP}", seconds=0.3)
    assert result.killed == "after 0.3 s"
    assert said(machine, "echo well") == "well"
    assert not running()


@needs_bubblewrap
def test_close_ends_a_command_in_another_thread(opened):
    machine, results = opened(), []
    thread = threading.Thread(target=lambda: results.append(machine.run(SLEEP, seconds=600.0)))
    thread.start()
    while machine.command is None or not running():
        time.sleep(0.01)
    machine.close()
    thread.join(60)
    assert [result.code for result in results] == [-9]
    with pytest.raises(RunError, match="has ended"):
        machine.run("true", seconds=60.0)


def running() -> list[str]:
    """Returns the processes of this machine that sleep as those of the tests do."""
    lines = subprocess.run(["ps", "-eo", "args"], capture_output=True, check=True).stdout
    return [x for x in lines.decode().splitlines() if x.startswith(SLEEP)]


@needs_bubblewrap
def test_nothing_is_left_when_the_process_is_killed(tmp_path):
    code = (
        "import sys, threading; from pathlib import Path; from rl4p.protocols.runtime import *\n"
        "from rl4p.rollout.runtimes.bubblewrap import Bubblewrap\n"
        "machine = Bubblewrap().open(Image(name='t', context=Path(sys.argv[1])))\n"
        f"x = threading.Thread(target=lambda: machine.run('{SLEEP}', seconds=600.0)); x.start()\n"
        "print(machine.holder.pid, flush=True); x.join()"
    )
    words = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as parent:
        holder = int(parent.stdout.readline())
        while not running():
            time.sleep(0.05)
        parent.send_signal(signal.SIGKILL)
    until = time.monotonic() + 60
    while (running() or Path(f"/proc/{holder}/exe").exists()) and time.monotonic() < until:
        time.sleep(0.05)
    assert not running()
    assert not Path(f"/proc/{holder}/exe").exists()  # and with it the mounted files


@needs_bubblewrap
def test_a_root_folder_is_not_changed(opened, tmp_path):
    root = tmp_path / "roots, of: tasks" / "t"
    write_root(root)
    (root / "app").mkdir()
    (root / "app" / "old").write_text("old")
    text = "FROM a\nRUN make all\nWORKDIR /app\n"
    machines = [opened(text, root=f"{root.parent}/{{task}}") for _ in range(2)]
    assert said(machines[0], "cat old; rm old; echo new >new; ls") == "oldnew"
    assert said(machines[1], "ls") == "old"
    assert [path.name for path in (root / "app").iterdir()] == ["old"]
    with pytest.raises(InputError, match=r"cannot take: set rollout\.environment\.runtime\.root"):
        opened(text, root=str(root))
    with pytest.raises(InputError, match="no root folder"):
        opened(root=f"{tmp_path}/{{task}}")


@needs_bubblewrap
def test_a_machine_that_cannot_be_started_says_why(tmp_path):
    with pytest.raises(RunError, match=r"cannot be mounted: mount: .*does not exist"):
        Bubblewrap(root=f"{tmp_path}/gone").open(Image(name="t", context=tmp_path))
    (tmp_path / "Dockerfile").write_text("FROM a\nCOPY big /\n")
    (tmp_path / "big").write_bytes(bytes(2**21))
    with pytest.raises(RunError, match="The sandbox of t fails: tar"):
        Bubblewrap(disk_mib=1).open(Image(name="t", context=tmp_path))


@needs_bubblewrap
def test_images_that_need_an_engine_are_refused(opened):
    with pytest.raises(InputError, match="the image a/b:1 of a registry: export"):
        opened(task={"reference": "a/b:1"})
    with pytest.raises(InputError, match="asks for disk_mib=9999"):
        opened(task={"disk_mib": 9999})


def test_a_machine_without_the_programs_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    bubblewrap.problem.cache_clear()
    try:
        with pytest.raises(InputError, match="the program bwrap is not installed"):
            Bubblewrap().check(Image(name="t", context=tmp_path))
    finally:
        bubblewrap.problem.cache_clear()
