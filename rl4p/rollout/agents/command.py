"""Agents that are programs: one process, and the group of its processes, for each episode."""

import asyncio
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl4p.base.errors import InputError
from rl4p.configuration.capability import ReadPath, Variable, Word
from rl4p.protocols.environment import AgentEpisode, columns_of

PASSED_ON = ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "TZ")  # hold no secrets
LONGEST_END = 2**16  # bytes that are kept of an output
DRAIN_SECONDS = 1.0  # for what a program wrote before it ended


def check_program(
    key: str, command: Sequence[str], folder: str | None, variables: Sequence[str]
) -> None:
    """Checks that a program can be started.

    Args:
      key: the configuration key that has `command`, `folder` and `variables`.
      command: the program and its arguments.
      folder: the folder that it runs in; None for the current one.
      variables: names of environment variables that it gets.

    Raises:
      InputError: there is no such program or folder, or a variable is not set.
    """
    if folder is not None and not Path(folder).is_dir():
        raise InputError(f"{key}.folder={folder} is not a folder.")
    program = command[0]
    place = str(Path(folder or ".").resolve() / program) if "/" in program else program
    if shutil.which(place) is None:
        raise InputError(f"{key}.command: there is no program {program}.")
    if missing := [name for name in variables if name not in os.environ]:
        raise InputError(f"{key}.variables: {missing[0]} is not set.")


class CommandFailed(Exception):
    """A program that ended with an error, or without the reward that it should print."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """An agent that is a program, in any language.

    The program runs once for each episode. On its standard input it gets one line: the row of the
    data set as a JSON object. Its environment variables are

    * ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY``, with which OpenAI's clients reach the policy, and
      ``ANTHROPIC_BASE_URL`` and ``ANTHROPIC_API_KEY``;
    * ``RL4P_SEED``, equal for all samples of a prompt in a step;
    * of this process PATH, HOME, TMPDIR, LANG, LC_ALL and TZ, and those that `variables` names.

    It runs with all rights of this user. An exit code other than 0 makes the sample invalid, with
    the last line of its standard error as the reason. When it has ended, or passes the deadline
    `rollout.episode_seconds`, all processes of its group are killed.

    Attributes:
      command: the program and its arguments; no shell reads them.
      folder: the folder that it runs in; None for the current one.
      variables: names of further environment variables that it gets.
      prints_reward: whether the last line of its standard output is the reward: a number, or a JSON
        object with a number as `reward`. Otherwise the terms of the reward grade the last response.
    """

    command: tuple[Word, ...]
    folder: ReadPath | None = None
    variables: tuple[Variable, ...] = ()
    prints_reward: bool = False

    def __post_init__(self) -> None:
        if not self.command:
            raise InputError("agent.command is empty: write [PROGRAM,ARGUMENT,...].")
        check_program("agent", self.command, self.folder, self.variables)

    async def __call__(self, episode: AgentEpisode) -> Any:
        """Runs the program; returns the reward that it prints, or None.

        Raises:
          CommandFailed: the program ended with an error, or printed no reward.
        """
        with tempfile.TemporaryFile() as row:
            row.write(json.dumps(columns_of(episode.prompt), default=str).encode() + b"\n")
            row.seek(0)
            async with last_bytes() as (out, said), last_bytes() as (errors, complained):
                code = await self.run(episode, row, out, errors)
        if code:
            how = f"exit code {code}" if code > 0 else f"ended by {signal.Signals(-code).name}"
            reason = last_line(complained)
            raise CommandFailed(how + (f": {reason}" if reason else ""))
        return reward_in(last_line(said)) if self.prints_reward else None

    async def run(self, episode: AgentEpisode, row: Any, out: int, errors: int) -> int:
        """Runs the program to its end, and ends its group; returns the exit code.

        `out` and `errors` are the ends of pipes, which are closed here.
        """
        names = (*PASSED_ON, *self.variables)
        variables = {name: os.environ[name] for name in names if name in os.environ} | {
            "OPENAI_BASE_URL": episode.base_url,
            "OPENAI_API_KEY": episode.api_key,
            "ANTHROPIC_BASE_URL": episode.base_url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": episode.api_key,
            "RL4P_SEED": str(episode.seed),
        }
        try:
            process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=row,
                stdout=out,
                stderr=errors,
                cwd=self.folder,
                env=variables,
                start_new_session=True,
            )
        finally:
            os.close(out)
            os.close(errors)
        try:
            return await process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


class End(asyncio.Protocol):
    """The end of what arrives through a pipe."""

    def __init__(self) -> None:
        self.bytes = b""
        self.closed = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.bytes = (self.bytes + data)[-LONGEST_END:]

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()


@asynccontextmanager
async def last_bytes() -> AsyncIterator[tuple[int, End]]:
    """Opens a pipe for a program's output, and reads it so that the program never waits."""
    read, write = os.pipe()
    transport, end = await asyncio.get_running_loop().connect_read_pipe(End, os.fdopen(read, "rb"))
    try:
        yield write, end
        with suppress(TimeoutError):  # a process of another group still has the pipe
            async with asyncio.timeout(DRAIN_SECONDS):
                await end.closed.wait()
    finally:
        transport.close()


def last_line(end: End) -> str:
    """Returns the last line of an output that is not empty; "" if there is none."""
    lines = end.bytes.decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def reward_in(line: str) -> Any:
    """Returns the reward in the last line of an output.

    Raises:
      CommandFailed: it is no number, and no object with one.
    """
    try:
        value = json.loads(line)
    except ValueError:
        value = line
    if isinstance(value, dict):
        value = value.get("reward")
    if not isinstance(value, int | float):
        raise CommandFailed(f"the last line of its output is {line[:80]!r}, and not a reward")
    return value
