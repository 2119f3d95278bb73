"""Tasks in Harbor's form: an instruction, a machine, and tests that write a reward."""

import json
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from rl4p.base.errors import InputError
from rl4p.base.types import Prompt, Question
from rl4p.configuration.bounds import AboveZero, Finite, Positive
from rl4p.configuration.capability import ReadPath
from rl4p.data.tool_calls import ParsedCall
from rl4p.distributed.daemon_threads import in_thread
from rl4p.protocols.environment import Message, StepResult
from rl4p.protocols.runtime import CommandResult, OpenRuntime, Runtime
from rl4p.protocols.traits import require
from rl4p.rollout.environments.actions import reader_of, results_of_calls
from rl4p.rollout.environments.harbor_task import Task, read_task
from rl4p.rollout.runtimes.dockerfile import archive

log = logging.getLogger(__name__)

SHELL: Message = {
    "type": "function",
    "function": {
        "name": "shell",
        "description": "Runs a command in a new bash, in the working directory of the task. "
        "Returns its output and its exit code.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "the command"}},
            "required": ["command"],
        },
    },
}
LOGS = "/logs/verifier"
REWARDS = (f"{LOGS}/reward.json", f"{LOGS}/reward.txt")  # the first that exists counts
SETUP_SECONDS = 60.0  # for a command of our own
LONGEST_COMMAND = 100_000  # bytes; the kernel's limit of an argument is 131072
LONGEST_REWARD = 2**16  # bytes
MOST_FILES = 50  # that an episode has changed, and names; others are left out
JSON = 10  # the exit code of a command of our own that has read reward.json


@dataclass(frozen=True, kw_only=True)
class Harbor:
    """An environment of task folders in Harbor's form (version 0.25 of the package harbor).

        TASK/task.toml  instruction.md  environment/Dockerfile  tests/test.sh

    The policy reads the instruction and has one tool, `shell(command)`. The episode ends with a
    message without a call, at a limit of the rollout, or when the time of the task is over
    (`[agent].timeout_sec`). Then `tests/` is copied to `/tests`, `/tests/test.sh` runs for at most
    `[verifier].timeout_sec`, and the reward is read from `/logs/verifier/reward.json`, or
    `reward.txt` if there is none: a number; of several in JSON, `reward`. The others are metrics.

    As in Harbor's shared mode, the tests run on the machine that the policy changed. A machine that
    ends or cannot be started makes the sample invalid. Commands have deadlines of their own:
    `rollout.step_seconds` should be longer than the tests, or null.

        python -m rl4p.train rollout=environment +environment@rollout.environment=harbor \
            +runtime@rollout.environment.runtime=bubblewrap rollout.environment.path=tasks \
            rollout.step_seconds=null data=environment ...

    Attributes:
      path: the folder of the task folders, or one task folder.
      runtime: the machines.
      tasks: names of tasks, with `*` and `?`; empty for all.
      command_seconds: how long a command of the policy may take; then it is killed.
      timeout_multiplier: what the times of task.toml are multiplied with, as in Harbor.
      error_reward: the reward if the tests pass their time or write no reward that can be read, for
        which Harbor's means count 0. None makes the sample invalid.
      max_result_characters: a longer output of a command is cut in its middle.
    """

    path: ReadPath
    runtime: Any
    tasks: tuple[str, ...] = ()
    command_seconds: AboveZero = 60.0
    timeout_multiplier: AboveZero = 1.0
    error_reward: Finite | None = 0.0
    max_result_characters: Positive = 4096

    def __post_init__(self) -> None:
        require(self.runtime, Runtime, "rollout.environment.runtime")

    @cached_property
    def by_name(self) -> Mapping[str, Task]:
        """The tasks by the names of their folders, which can all be run here.

        Raises:
          InputError: there is none, or one cannot be run.
        """
        path = Path(self.path).resolve()
        files = [path / "task.toml"] if (path / "task.toml").exists() else path.glob("*/task.toml")
        folders = sorted(file.parent for file in files)
        if self.tasks:
            folders = [x for x in folders if any(fnmatch(x.name, each) for each in self.tasks)]
        if not folders:
            named = f" of these names: {', '.join(self.tasks)}" if self.tasks else ""
            raise InputError(f"rollout.environment.path={self.path} has no task folders{named}.")
        tasks = {folder.name: read_task(folder) for folder in folders}
        for task in tasks.values():
            self.runtime.check(task.image)
        wanting = [name for name, task in tasks.items() if task.wants_network]
        if wanting and getattr(self.runtime, "network", "none") == "none":
            message = "%d of %d tasks ask for a network, which their machines do not have: %s."
            log.warning(message, len(wanting), len(tasks), ", ".join(wanting[:5]))
        return tasks

    def questions(self) -> Iterator[Question]:
        for name, task in self.by_name.items():
            yield Question(id=f"harbor/{name}", question=task.instruction, answer="", task="harbor")

    def held_out_questions(self) -> None:
        """Returns None: there is no held-out split."""

    def tools(self, prompt: Prompt) -> Sequence[Message]:
        return (SHELL,)

    def open(self, prompt: Prompt, seed: int, episode_id: str) -> "HarborEpisode":
        name = prompt.id.removeprefix("harbor/")
        if name not in self.by_name:
            raise InputError(f"The question {prompt.id} is no task: add data=environment.")
        return HarborEpisode(self, self.by_name[name], prompt)


class HarborEpisode:
    """An episode of `Harbor`: a task with its machine."""

    machine: OpenRuntime | None = None

    def __init__(self, options: Harbor, task: Task, prompt: Prompt) -> None:
        self.options, self.task = options, task
        self.reader, self.until = reader_of((SHELL,), prompt), math.inf
        self.metrics: dict[str, float] = {}
        self.began, self.changed_files = 0.0, dict[str, int]()

    async def reset(self) -> tuple[()]:
        self.machine = await in_thread(partial(self.options.runtime.open, self.task.image))
        await self.run_checked(f"mkdir -p /logs/agent {LOGS} /logs/artifacts")
        image = self.task.image
        beside = image.context.is_dir() and not (image.context / "Dockerfile").exists()
        if image.reference and beside:  # the files of the task, for the working directory
            await self.run_checked("tar -xf -", archive([("/", image.context)]))
        self.began, seconds = time.time(), self.task.file.agent.timeout_sec
        if seconds is not None:
            self.until = time.monotonic() + seconds * self.options.timeout_multiplier
        return ()

    async def step(self, message: Message) -> StepResult:
        text = message["content"]
        results = await results_of_calls(text, self.reader, self.answer, 2**31)
        if results is not None and time.monotonic() < self.until:
            return results
        reward, results = await self.cut_reward(), results or StepResult()
        metrics = {**results.metrics, **self.metrics}
        return replace(results, done=True, reward=reward, metrics=metrics)

    async def answer(self, call: ParsedCall) -> str:
        """Returns what the policy reads of a command."""
        command, left = call.arguments.get("command"), self.until - time.monotonic()
        if not isinstance(command, str):
            return "Error: command: a text is expected."
        try:
            length = len(command.encode())
        except UnicodeEncodeError:
            return "Error: command: it is no UTF-8."
        if length > LONGEST_COMMAND or "\0" in command:
            return f"Error: command: at most {LONGEST_COMMAND} bytes without a zero are expected."
        if left <= 0:
            return "Error: the time of the task is over."
        seconds = min(self.options.command_seconds, left)
        result = await self.run(command, seconds, most=self.options.max_result_characters)
        output = result.output.decode(errors="replace").rstrip("\n")
        end = f"[killed {result.killed}]" if result.killed else f"[exit code {result.code}]"
        return f"{output}\n{end}".lstrip("\n")

    async def run(self, command: str, seconds: float, **options: Any) -> CommandResult:
        """Runs a command in a thread."""
        assert self.machine is not None
        return await in_thread(partial(self.machine.run, command, seconds=seconds, **options))

    async def run_checked(self, command: str, content: bytes = b"") -> bytes:
        """Runs a command of our own; returns its output.

        Raises:
          ValueError: it fails, as on a full disk.
        """
        result = await self.run(command, SETUP_SECONDS, content=content)
        if result.code != 0:
            output = result.output.decode(errors="replace").strip()[-200:]
            raise ValueError(f"the machine of {self.task.folder.name} fails: {output}")
        return result.output

    async def cut_reward(self) -> float:
        """Returns the reward of the tests; adds metrics.

        Raises:
          ValueError: they have none, and there is no `error_reward`.
        """
        try:
            reward, others = await self.run_tests()
        except (ValueError, OverflowError, RecursionError):  # the last two of JSON
            if self.options.error_reward is None:
                raise
            reward, others = self.options.error_reward, {"ungraded": 1.0}
        self.metrics |= others
        return reward

    async def run_tests(self) -> tuple[float, dict[str, float]]:
        """Runs the tests; returns the reward that they write, and the other numbers beside it.

        Raises:
          ValueError: they cannot be run, pass their time, or write no reward that can be read.
        """
        tests = archive([("/", self.task.folder / "tests")])
        # One command more would cost a sandbox. A machine whose find is another lists no files.
        prepare = f"find . -xdev -type f -newerct @{self.began:.3f} -printf '%s %P\\n' 2>/dev/null"
        prepare += f" | head -n {MOST_FILES}; rm -rf {' '.join(REWARDS)} && mkdir -p /tests {LOGS}"
        prepare += " && tar -xf - -C /tests && chmod +x /tests/test.sh"
        self.changed_files = sizes_in(await self.run_checked(prepare, tests))
        section = self.task.file.verifier
        seconds = section.timeout_sec * self.options.timeout_multiplier
        command = f"(/tests/test.sh) > {LOGS}/test-stdout.txt 2>&1"
        result = await self.run(command, seconds, variables=section.env)
        if result.killed is not None:
            raise ValueError(f"the tests were killed {result.killed}")
        # One command reads both: each command costs a sandbox, or a call of an engine.
        read = f"(cat {REWARDS[0]} && exit {JSON} || cat {REWARDS[1]}) 2>/dev/null"
        result = await self.run(read, SETUP_SECONDS, most=LONGEST_REWARD)
        if result.code not in (0, JSON):
            raise ValueError(f"the tests wrote none of {', '.join(REWARDS)}")
        text = result.output.decode()
        return numbers_in(text) if result.code == JSON else (finite(float(text)), {})

    async def close(self) -> None:
        if self.machine is not None:
            await in_thread(self.machine.close)


def sizes_in(listed: bytes) -> dict[str, int]:
    """Returns the sizes of files by name, of lines with a size and a name."""
    lines = (line.partition(" ") for line in listed.decode(errors="replace").split("\n"))
    return {name: int(size) for size, _, name in lines if name and size.isdecimal()}


def numbers_in(text: str) -> tuple[float, dict[str, float]]:
    """Returns the reward in JSON, and the other numbers.

    Raises:
      ValueError: it is no object of finite numbers with one number or with `reward`.
    """
    values = json.loads(text)
    if not isinstance(values, dict) or not all(isinstance(x, int | float) for x in values.values()):
        raise ValueError("reward.json is no object of numbers")
    numbers = {str(name): finite(float(value)) for name, value in values.items()}
    if len(numbers) == 1:
        return next(iter(numbers.values())), {}
    if "reward" not in numbers:
        raise ValueError("reward.json has several numbers, and no reward")
    return numbers.pop("reward"), numbers


def finite(number: float) -> float:
    """Returns a number.

    Raises:
      ValueError: it is not finite.
    """
    if not math.isfinite(number):
        raise ValueError(f"the reward {number} is not finite")
    return number
