import os
import subprocess

import pytest

from rl4p.distributed import control_group
from rl4p.distributed.control_group import (
    candidates,
    limit,
    make,
    remove,
    remove_leftovers,
    words_to_enter,
)

needs_groups = pytest.mark.skipif(control_group.parent() is None, reason="no folder of cgroups")


@pytest.mark.parametrize(
    ("own", "folders"),
    [
        ("4:memory:/a/b\n2:cpu:/c\n0::/d\n", ["memory/a/b", "d", ""]),
        ("0::/user.slice/a.scope\n", ["user.slice/a.scope", "user.slice"]),
        ("0::/\n", [""]),
        ("2:cpu,cpuacct:/\n", []),
    ],
)
def test_groups_are_made_below_and_beside_the_own_one(own, folders, tmp_path):
    assert candidates(own, tmp_path) == [tmp_path / each for each in folders]


def test_a_limit_is_written_for_each_version(tmp_path):
    with pytest.raises(FileNotFoundError, match="no limit of memory"):
        limit(tmp_path, 5)
    for name in ("memory.max", "memory.swap.max"):
        (tmp_path / name).touch()
    limit(tmp_path, 5)
    (tmp_path / "pids.max").touch()
    limit(tmp_path, 7, "pids")
    assert (tmp_path / "pids.max").read_text() == "7"
    contents = [(tmp_path / name).read_text() for name in ("memory.max", "memory.swap.max")]
    assert contents == ["5", "0"]


@needs_groups
def test_a_group_holds_a_process_and_its_memory():
    (path,) = groups = make(64 * 2**20)
    code = "x = bytearray(256 * 2**20); print('had all')"
    command = [*words_to_enter(groups), "python3", "-c", code]
    process = subprocess.run(command, capture_output=True, check=False)
    assert (process.returncode, process.stdout) == (-9, b"")
    remove(path)
    assert not path.exists()


@pytest.mark.skipif(control_group.parent("pids") is None, reason="no folder of cgroups")
def test_groups_hold_a_number_of_processes():
    groups = make(2**30, 3)
    script = "(sleep 600 & sleep 600 & echo had all >&2); read end"
    command = [*words_to_enter(groups), "/bin/sh", "-c", script]
    with control_group.Popen(command, stdin=-1, stderr=-1, start_new_session=True) as shell:
        shell.groups = groups
        complained = shell.stderr.readline()
        shell.close()
    assert b"fork" in complained
    assert not any(path.exists() for path in groups)


@needs_groups
def test_a_group_that_is_in_use_is_removed_later():
    (path,) = groups = make(2**30)
    with subprocess.Popen([*words_to_enter(groups), "cat"], stdin=subprocess.PIPE) as cat:
        while not (path / "cgroup.procs").read_text():
            pass
        remove(path, seconds=0.0)
        assert path in control_group.leftovers
        cat.stdin.close()
    (other,) = make(2**30)
    assert not path.exists()
    assert not control_group.leftovers
    remove(other)


def test_groups_of_processes_that_have_ended_are_removed(tmp_path):
    with subprocess.Popen(["true"]) as ended:
        pass
    names = [f"{control_group.NAME}{number}-0" for number in (ended.pid, os.getpid())]
    for name in (*names, "other"):
        (tmp_path / name).mkdir()
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["other", names[1]])


def test_without_a_folder_there_is_no_group(monkeypatch):
    monkeypatch.setattr(control_group, "parent", lambda controller: None)
    assert make(2**30, 8) == ()
