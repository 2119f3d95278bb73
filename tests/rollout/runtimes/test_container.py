"""Tests the words for engines of containers, and what they say without a server.

No engine runs here: what it does with these words is checked by hand, where there is one.
"""

import os
import shutil
import signal
import subprocess

import pytest

from rl4p.base.errors import InputError
from rl4p.protocols.runtime import Image
from rl4p.rollout.runtimes.container import (
    KILLED,
    RUN,
    Container,
    OpenContainer,
    left_behind,
    owner,
)


def test_the_words_that_start_a_container(tmp_path):
    image = Image(name="t", context=tmp_path, workdir="/app", variables={"A": "1"}, memory_mib=512)
    options = Container(engine="podman", cpus=2.0, arguments=("--storage-opt=size=4g",))
    assert options.start_words(image, "sha256:1", "rl4p-2") == [
        *("podman", "run", "--detach", "--rm", "--name", "rl4p-2"),
        *("--label", "rl4p", "--tmpfs", "/rl4p:size=67108864", "--network", "none"),
        *("--memory", "512m", "--memory-swap", "512m", "--pids-limit", "256", "--cpus", "2"),
        *("--security-opt", "no-new-privileges", "--workdir", "/app", "--env", "A=1"),
        *("--storage-opt=size=4g", "sha256:1", "sh", "-c", "while :; do sleep 3600; done"),
    ]


def test_the_words_that_run_a_command():
    container = object.__new__(OpenContainer)
    container.engine, container.name = "docker", "rl4p-2"
    assert container.words("echo a; b", 2.5, {"A": "1"}) == [
        *("docker", "exec", "--interactive", "--env", "A=1", "rl4p-2"),
        *("sh", "-c", RUN, "2.5", "echo a; b"),
    ]


def test_a_command_that_leaves_a_process_gives_its_output_and_code(tmp_path):
    """The words in the container, by a shell of this machine."""
    script = RUN.replace("/rl4p", str(tmp_path))

    def run(command, seconds):
        words = ["sh", "-c", script, seconds, command]
        done = subprocess.run(words, input=b"in\n", capture_output=True, timeout=60, check=False)
        return done.returncode, done.stdout.split()

    code, (*said, pid) = run("cat; sleep 86399 & echo err >&2; echo $!; exit 3", "60")
    os.kill(int(pid), signal.SIGKILL)
    assert (code, said) == (3, [b"in", b"err"])
    code, said = run("echo a; sleep 86399", "0.2")
    assert (code, said[0]) == (KILLED, b"a")


def test_containers_of_processes_that_have_ended_are_left_behind():
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as living:
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as ended:
            of_ended = owner(ended.pid)
        of_living = owner(living.pid)
        earlier = owner().rpartition(".")[0] + ".1"  # another process with our number
        other = owner().replace(".", "0.", 1)  # of another machine
        names = [f"rl4p-{x}-7" for x in (of_ended, of_living, owner(), earlier, other)]
        assert left_behind([*names, "other", "rl4p-"]) == [names[0], names[3]]
    assert owner().split(".")[2] == str(os.getpid())
    assert owner(ended.pid) == ""


def test_an_engine_that_is_missing_is_refused(tmp_path):
    with pytest.raises(InputError, match="the program no-engine is not installed"):
        Container(engine="no-engine").check(Image(name="t", context=tmp_path))


@pytest.mark.skipif(shutil.which("docker") is None, reason="no docker")
def test_an_engine_without_a_server_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(InputError, match=r"cannot be used: docker ps fails: .*none\.sock"):
        Container().check(Image(name="t", context=tmp_path))
