"""Tests the words for engines of containers, and a container where an engine runs."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from rl4p.base.errors import InputError, RunError
from rl4p.protocols.runtime import Image
from rl4p.rollout.runtimes.container import (
    KILLED,
    RUN,
    Container,
    OpenContainer,
    left_behind,
    owner,
    problem,
    remove,
)
from tests.support.root_folder import write_root
from tests.support.trackers import wait_for


def test_the_words_that_start_a_container(tmp_path):
    image = Image(name="t", context=tmp_path, workdir="/app", variables={"A": "1"}, memory_mib=512)
    options = Container(engine="podman", cpus=2.0, arguments=("--storage-opt=size=4g",))
    assert options.start_words(image, "sha256:1", "rl4p-2") == [
        *("run", "--detach", "--rm", "--name", "rl4p-2"),
        *("--label", "rl4p", "--tmpfs", "/rl4p:size=67108864", "--network", "none"),
        *("--memory", "512m", "--memory-swap", "512m", "--pids-limit", "256", "--cpus", "2"),
        *(
            "--security-opt",
            "no-new-privileges",
            "--stop-signal",
            "KILL",
            "--workdir",
            "/app",
            "--env",
            "A=1",
        ),
        *("--storage-opt=size=4g", "sha256:1", "sh", "-c", "while :; do sleep 3600; done"),
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ("docker",)),
        ({"address": "ssh://a@b"}, ("docker", "--host", "ssh://a@b")),
        ({"engine": "podman", "address": "tcp://b:1"}, ("podman", "--url", "tcp://b:1")),
    ],
)
def test_the_words_that_run_a_command(options, words):
    container = object.__new__(OpenContainer)
    container.engine, container.name = Container(**options).command, "rl4p-2"
    assert container.words("echo a; b", 2.5, {"A": "1"}) == [
        *(*words, "exec", "--interactive", "--env", "A=1", "rl4p-2"),
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
    problem.cache_clear()
    with pytest.raises(InputError, match=r"cannot be used: docker ps fails: .*none\.sock"):
        Container().check(Image(name="t", context=tmp_path))
    problem.cache_clear()


ENGINES = [name for name in ("docker", "podman") if problem((name,)) is None]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """Returns an engine with an image that it can run; without one the test is skipped."""
    if not ENGINES:
        pytest.skip("no engine of containers runs here")
    folder = tmp_path_factory.mktemp("image")
    write_root(folder / "root")
    subprocess.run(["tar", "-C", folder / "root", "-cf", folder / "a.tar", "."], check=True)
    name, image = ENGINES[0], "localhost/rl4p-test:1"
    subprocess.run([name, "import", folder / "a.tar", image], check=True, capture_output=True)
    words = [name, "run", "--rm", "--network=none", "--memory=64m", image, "ls"]
    tried = subprocess.run(words, capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"{name} cannot run a container: {tried.stderr.strip()[-200:]}")
    yield name
    subprocess.run([name, "rmi", "--force", image], check=True, capture_output=True)


@pytest.fixture
def address(engine, tmp_path):
    """The address of an engine that serves others."""
    if engine != "podman":
        pytest.skip("only podman is started as a server")
    at = f"unix://{tmp_path}/engine.sock"
    with subprocess.Popen([engine, "system", "service", "--time=0", at]) as server:
        wait_for(lambda: problem((engine, "--url", at)) is None or problem.cache_clear())
        yield at
        server.terminate()


def listed(engine):
    words = [engine, "ps", "--all", "--filter", "label=rl4p", "--format", "{{.Names}}"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()


@pytest.fixture
def image(tmp_path):
    (tmp_path / "hello.txt").write_text("hello")
    text = "FROM localhost/rl4p-test:1\nWORKDIR /app\nCOPY hello.txt .\nENV A=1\n"
    (tmp_path / "Dockerfile").write_text(text)
    return Image(name="t", context=tmp_path, variables={"B": "2"})


def test_a_container_of_an_engine_with_an_address(engine, address, image):
    machine = Container(engine=engine, address=address, memory_mib=256).open(image)
    try:
        result = machine.run("cat hello.txt -; exit 3", seconds=60.0, content=b"x")
        assert (result.output, result.code) == (b"hellox", 3)
        assert machine.run("sleep 600", seconds=0.5).killed == "after 0.5 s"
        assert machine.name in listed(engine)
    finally:
        machine.close()
    assert machine.name not in listed(engine)


def test_a_container(engine, image):
    machine = Container(engine=engine, memory_mib=256, processes=32).open(image)
    try:
        result = machine.run("cat hello.txt - >both; echo $A$B; exit 3", seconds=60.0, content=b"x")
        assert (result.output, result.code) == (b"12\n", 3)
        assert machine.run("cat both; sleep 600 &", seconds=60.0).output == b"hellox"
        assert machine.run("sleep 600", seconds=0.5).killed == "after 0.5 s"
        many = machine.run("sh -c 'for i in $(seq 40); do sleep 600 & done'", seconds=60.0)
        assert b"fork" in many.output
        assert machine.run("kill -9 -1; kill -9 1", seconds=60.0).code
        assert machine.run("echo well", seconds=60.0).output == b"well\n"
        assert machine.name in listed(engine)
        remove((engine,), [machine.name])
        with pytest.raises(RunError):
            machine.run("true", seconds=60.0)
    finally:
        machine.close()
    assert machine.name not in listed(engine)


def test_a_killed_process_leaves_a_container_until_the_next_start(engine, image):
    code = (
        "import sys; from pathlib import Path; from rl4p.protocols.runtime import Image\n"
        "from rl4p.rollout.runtimes.container import Container\n"
        "image = Image(name='t', context=Path(sys.argv[2]))\n"
        "machine = Container(engine=sys.argv[1], memory_mib=64).open(image)\n"
        "print(machine.name, flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", code, engine, str(image.context)]
    with subprocess.Popen(words, stdin=-1, stdout=-1, text=True) as child:
        name = child.stdout.readline().strip()
        child.kill()
    assert name in listed(engine)
    problem.cache_clear()
    assert problem((engine,)) is None
    assert name not in listed(engine)
