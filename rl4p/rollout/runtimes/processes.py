"""The end of one command of a runtime: its output, its deadline, its machine's limits."""

import os
import selectors
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field

from rl4p.base.errors import InputError
from rl4p.distributed.control_group import Popen
from rl4p.protocols.runtime import LARGEST_OUTPUT, CommandResult, Image


@dataclass(kw_only=True)
class Kept:
    """The beginning and the end of an output, of at most `most` bytes."""

    most: int
    begin: bytearray = field(default_factory=bytearray)
    end: bytearray = field(default_factory=bytearray)
    total: int = 0

    def add(self, part: bytes) -> None:
        self.total += len(part)
        room = self.most - self.most // 2 - len(self.begin)
        self.begin += part[:room]
        self.end += part[room:]
        del self.end[: max(0, len(self.end) - self.most // 2)]

    def result(self, code: int | None, killed: str | None = None) -> CommandResult:
        left_out = self.total - len(self.begin) - len(self.end)
        note = b"\n[%d bytes left out]\n" % left_out if left_out else b""
        output = bytes(self.begin) + note + bytes(self.end)
        return CommandResult(output=output, code=code, killed=killed)


def communicate(process: Popen, content: bytes, seconds: float, most: int) -> CommandResult:
    """Writes to a process and reads from it until it ends; kills it after its time.

    Args:
      process: has pipes without buffers as its standard input and output.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    until, kept, rest = time.monotonic() + seconds, Kept(most=most), memoryview(content)
    os.set_blocking(process.stdin.fileno(), False)
    killed = f"after {seconds:g} s"
    with process.stdin, selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        selector.register(process.stdin, selectors.EVENT_WRITE)
        while (left := until - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                if key.fileobj is process.stdin:
                    try:
                        rest = rest[os.write(key.fd, rest[: 1 << 16]) :]
                    except BrokenPipeError:
                        rest = rest[:0]
                    if not rest:
                        selector.unregister(process.stdin)
                        process.stdin.close()
                elif part := os.read(key.fd, 1 << 16):
                    kept.add(part)
                else:
                    with suppress(subprocess.TimeoutExpired):
                        return kept.result(process.wait(left))
                    selector.unregister(process.stdout)
            if kept.total > LARGEST_OUTPUT:
                killed = f"after {LARGEST_OUTPUT >> 20} MiB of output"
                break
    process.close()
    return kept.result(None, killed)


def limit_of(image: Image, name: str, most: int) -> int:
    """Returns a limit of a task's machine in MiB: what the task asks for, or else the option.

    Raises:
      InputError: it asks for more than the option.
    """
    wanted = getattr(image, name)
    if wanted is not None and wanted > most:
        raise InputError(
            f"The task {image.name} asks for {name}={wanted}, more than runtime.{name}={most}: "
            f"set rollout.environment.runtime.{name}={wanted}, or leave the task out."
        )
    return most if wanted is None else wanted


def last_line(output: bytes) -> str:
    """Returns the last line of an output that is not empty, cut; a remark if there is none."""
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1].strip()[:200].rstrip(".") if lines else "it said nothing"
