"""The contracts of runtimes: machines of one episode each, in which its commands run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

LARGEST_OUTPUT = 2**26  # bytes, after which a command is killed


@dataclass(frozen=True, kw_only=True)
class Image:
    """What the machine of a task begins with.

    Attributes:
      name: the name of the task, for messages.
      context: the folder of its Dockerfile, and of the files that this copies.
      reference: an image of a registry, in place of the Dockerfile.
      workdir: the working directory, in place of the Dockerfile's.
      variables: environment variables, beside the Dockerfile's.
      memory_mib, disk_mib, cpus: what the task asks for; None leaves it to the runtime.
      build_seconds: the most time that building the image takes.
    """

    name: str
    context: Path
    reference: str | None = None
    workdir: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    memory_mib: int | None = None
    disk_mib: int | None = None
    cpus: float | None = None
    build_seconds: float = 600.0


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """What a command did.

    Attributes:
      output: its output and its errors; of a long one the beginning, a note, and the end.
      code: its exit code; None if it was killed.
      killed: why it was killed, as in "after 60 s"; None if it ended by itself.
    """

    output: bytes
    code: int | None
    killed: str | None = None


class OpenRuntime(Protocol):
    """A machine. Its calls block; files stay from one command to the next."""

    def run(
        self,
        command: str,
        *,
        seconds: float,
        most: int = LARGEST_OUTPUT,
        content: bytes = b"",
        variables: Mapping[str, str] | None = None,
    ) -> CommandResult:
        """Runs a command in a new bash, in the working directory.

        Args:
          seconds: the time after which it is killed.
          most: the most bytes of its output that are kept.
          content: its standard input.

        Raises:
          RunError: the machine has ended, or cannot run commands.
        """
        ...

    def close(self) -> None:
        """Ends the machine with all its processes and files, also from another thread."""
        ...


@runtime_checkable
class Runtime(Protocol):
    """The options of a runtime: a frozen dataclass that YAML describes."""

    def check(self, image: Image) -> None:
        """Checks that an image can be run here.

        Raises:
          InputError: it cannot; the message says what to do.
        """
        ...

    def open(self, image: Image) -> OpenRuntime:
        """Returns a new machine.

        Raises:
          RunError: it cannot be started.
        """
        ...
