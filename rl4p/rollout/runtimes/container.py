"""A runtime by the command line of an engine of containers: docker or podman.

Sources: the references of docker's command line (run, exec, build, rm, ps) and of podman's.
"""

import functools
import itertools
import os
import shutil
import subprocess
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rl4p.base.errors import InputError, RunError
from rl4p.configuration.bounds import AboveZero, Positive
from rl4p.configuration.capability import Address, Word
from rl4p.distributed.control_group import Popen
from rl4p.protocols.runtime import LARGEST_OUTPUT, CommandResult, Image
from rl4p.rollout.runtimes.processes import communicate, last_line, limit_of

LABEL = "rl4p"  # of each container; its name has the process that made it
WAIT = "while :; do sleep 3600; done"  # process 1, which no command can end
# A process that a command leaves running keeps its output open, and the engine would wait for it.
# So the output goes into a file, which is then shown.
RUN = """rm -f /rl4p/out; timeout -s KILL "$0" bash -c "$1" >/rl4p/out 2>&1; code=$?
cat /rl4p/out; exit $code"""
ENGINE_SECONDS = 60.0  # for a call of the engine, beside what it runs
KILLED = 128 + 9  # the exit code after SIGKILL
lock, numbers = threading.Lock(), itertools.count()
images: dict[tuple[tuple[str, ...], Path], str] = {}  # the ids of what this process built


@dataclass(frozen=True, kw_only=True)
class Container:
    """A runtime whose machine is a container, through the command line of its engine.

    The image is built from the Dockerfile of the task, once in each run, or pulled. It needs bash,
    timeout and tar. Processes go on between commands, and end with the episode. Disks have the
    limit that the engine sets (`arguments`).

    The name of a container has the process that made it. The first use of an engine removes the
    containers whose process has ended, as after SIGKILL.

    Attributes:
      engine: the program: docker or podman.
      address: of an engine on another machine, such as `ssh://user@host` or `tcp://host:2375`; None
        is the one of this machine. Contexts of Dockerfiles are sent there.
      network: its network; `none` has only the loopback device.
      memory_mib: of a container, without swap.
      processes: of a container.
      cpus: the number of processors that it may use.
      arguments: more words for `run`, such as `--storage-opt=size=4g` or `--runtime=runsc`.
    """

    engine: Word = "docker"
    address: Address | None = None
    network: Word = "none"
    memory_mib: Positive = 1024
    processes: Positive = 256
    cpus: AboveZero = 1.0
    arguments: tuple[Word, ...] = ()

    def check(self, image: Image) -> None:
        if (reason := problem(self.command)) is not None:
            raise InputError(f"runtime=container cannot be used: {reason}.")
        limit_of(image, "memory_mib", self.memory_mib)

    def open(self, image: Image) -> "OpenContainer":
        return OpenContainer(self, image)

    @property
    def command(self) -> tuple[str, ...]:
        """The words with which each call of the engine begins."""
        flag = "--url" if Path(self.engine).name == "podman" else "--host"
        return (self.engine, *(() if self.address is None else (flag, self.address)))

    def start_words(self, image: Image, reference: str, name: str) -> list[str]:
        """Returns the words that start a container of an image."""
        memory = f"{limit_of(image, 'memory_mib', self.memory_mib)}m"
        words = ["run", "--detach", "--rm", "--name", name]
        words += ["--label", LABEL, "--tmpfs", f"/rl4p:size={LARGEST_OUTPUT}"]
        words += ["--network", self.network]
        words += ["--memory", memory, "--memory-swap", memory]
        words += ["--pids-limit", str(self.processes)]
        words += ["--cpus", f"{min(self.cpus, image.cpus or self.cpus):g}"]
        words += ["--security-opt", "no-new-privileges", "--stop-signal", "KILL"]
        if image.workdir is not None:
            words += ["--workdir", image.workdir]
        words += variables_of(image.variables)
        return [*words, *self.arguments, reference, "sh", "-c", WAIT]

    def reference(self, image: Image) -> str:
        """Returns the name or id of an image, which is built first if it has a Dockerfile.

        Raises:
          RunError: it cannot be built.
        """
        if image.reference is not None:
            return image.reference
        key = self.command, image.context
        with lock:
            if key not in images:
                words = ["build", "--quiet", str(image.context)]
                images[key] = output_of_engine(self.command, words, image.build_seconds)
        return images[key]


class OpenContainer:
    """A container of `Container`."""

    def __init__(self, options: Container, image: Image) -> None:
        self.engine, self.name = options.command, f"rl4p-{owner()}-{next(numbers)}"
        reference = options.reference(image)
        self.close = weakref.finalize(self, remove, self.engine, [self.name])
        try:
            words = options.start_words(image, reference, self.name)
            output_of_engine(self.engine, words, image.build_seconds)
        except RunError:
            self.close()
            raise

    def run(
        self,
        command: str,
        *,
        seconds: float,
        most: int = LARGEST_OUTPUT,
        content: bytes = b"",
        variables: Mapping[str, str] | None = None,
    ) -> CommandResult:
        process = Popen(
            self.words(command, seconds, variables or {}),
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        began = time.monotonic()
        try:
            result = communicate(process, content, seconds + ENGINE_SECONDS, most)
        finally:
            process.close()
        took = time.monotonic() - began
        if took >= seconds + ENGINE_SECONDS:
            self.close()
            raise RunError(f"{self.engine[0]} did not answer: its container is removed.")
        if result.code == KILLED and took >= seconds:
            return replace(result, code=None, killed=f"after {seconds:g} s")
        if result.code and result.output.startswith(b"Error"):  # of the engine, or of the command
            state = ["inspect", "--format", "{{.State.Running}}", self.name]
            if output_of_engine(self.engine, state, ENGINE_SECONDS) != "true":
                raise RunError(f"A container has ended: {last_line(result.output)}.")
        return result

    def words(self, command: str, seconds: float, variables: Mapping[str, str]) -> list[str]:
        """Returns the words that run a command in the container."""
        words = ["exec", "--interactive", *variables_of(variables), self.name]
        return [*self.engine, *words, "sh", "-c", RUN, f"{seconds:g}", command]


def variables_of(variables: Mapping[str, str]) -> list[str]:
    """Returns the words that set environment variables."""
    return [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]


def output_of_engine(engine: Sequence[str], words: Sequence[str], seconds: float) -> str:
    """Returns what a call of an engine (`Container.command`) prints.

    Raises:
      RunError: it fails, or passes its time.
    """
    what = f"{engine[0]} {words[0]}"
    try:
        done = subprocess.run(
            [*engine, *words],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"{what} took more than {seconds:g} s.") from None
    if done.returncode:
        raise RunError(f"{what} fails: {last_line(done.stderr or done.stdout)}.")
    return done.stdout.decode(errors="replace").strip()


def remove(engine: Sequence[str], names: Sequence[str]) -> None:
    """Removes containers with their processes and volumes; one that is gone is no error."""
    subprocess.run(
        [*engine, "rm", "--force", "--volumes", *names],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=ENGINE_SECONDS,
        check=False,
    )


def owner(pid: int | None = None) -> str:
    """Returns a name of a process of this machine, which no other has; "" if there is none.

    It has the boot of the machine, the namespace of process numbers, the number and the start.
    """
    try:
        stat = Path("/proc", str(pid or os.getpid()), "stat").read_text()
    except OSError:
        return ""
    started = stat.rpartition(")")[2].split()[19]
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    space = Path("/proc/self/ns/pid").readlink().name.strip("pid:[]")
    return f"{boot}.{space}.{pid or os.getpid()}.{started}"


def left_behind(names: Sequence[str]) -> list[str]:
    """Returns the containers whose process has ended.

    Those of other machines, and of other namespaces of process numbers, are not judged.
    """
    here, old = owner().rsplit(".", 2)[0], []
    for name in names:
        made_by = name.removeprefix("rl4p-").rpartition("-")[0]
        space, _, pid = made_by.rpartition(".")[0].rpartition(".")
        if space == here and made_by != owner(int(pid)):
            old.append(name)
    return old


@functools.cache
def problem(engine: tuple[str, ...]) -> str | None:
    """Returns why an engine cannot be used, as a sentence's end; None if it can.

    It removes the containers that earlier processes have left.
    """
    if shutil.which(engine[0]) is None:
        return f"the program {engine[0]} is not installed"
    words = ["ps", "--all", "--filter", f"label={LABEL}", "--format", "{{.Names}}"]
    try:
        if old := left_behind(output_of_engine(engine, words, ENGINE_SECONDS).split()):
            remove(engine, old)
    except RunError as error:
        return str(error).rstrip(".")
    return None
