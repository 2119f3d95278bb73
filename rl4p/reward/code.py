"""Unit tests of model-written Python."""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from rl4p.base.types import Episode
from rl4p.configuration.bounds import AboveZero, Positive
from rl4p.data.code import are_tests
from rl4p.data.extraction import after_thoughts
from rl4p.data.fields import plain_list
from rl4p.distributed.counting import item_done
from rl4p.reward.answers import Ungradable, with_nan
from rl4p.reward.sandbox import Kind, ProcessLimits, output, problem, start


@dataclass(frozen=True, kw_only=True)
class Code:
    """A grade of 1 if the code in the response passes the tests of its prompt, else 0.

    The code is the last complete block between lines of three backticks after the thoughts
    (`after_thoughts`), or all of the response after them if it has none. The data set gives the
    tests in its metadata:

        tests: ["assert add(1, 2) == 3", ...]                 Python that raises if the test fails
        tests: [{"input": "1 2", "output": "3"}, ...]         standard input and expected output
        setup: "import math"                                  Python that runs before each test

    Outputs are equal up to white space at the ends of lines and of the output. A prompt without
    `tests` gets None, and one whose tests cannot be read is invalid. Code that fails, takes too
    long or too much memory fails its tests; a sandbox that fails makes the response invalid.

    The code runs in a sandbox (`sandbox.py`) with Python's standard library only. It cannot write
    its own grade. Expected outputs never enter the sandbox. Test code runs in another process, to
    which the solution gives plain values (`sandbox_child.py`): an object that equals everything or
    claims a length, an early exit or a changed built-in function changes nothing there. So a test
    may call functions and classes of the code with numbers, strings, and lists, tuples, sets and
    dicts of these, but give it no functions, and two objects of its classes are equal only if they
    are the same.

        python -m rl4p.train term@reward.terms.correct=code ...

    Attributes:
      sandbox: ``bubblewrap``, or ``none``, which runs the code with all rights of this user.
      partial: whether the grade is the share of tests that pass.
      response_seconds: how long all tests of one response may take.
      memory_mib: the memory of a sandbox, or where cgroups cannot be made the address space of a
        process (`control_group.py`).
      workers: how many responses are graded at a time.
      deadline: how long all responses of a batch may take, in seconds; None for no limit.
    """

    weight: float = 1.0
    sandbox: Kind = "bubblewrap"
    partial: bool = False
    response_seconds: AboveZero = 10.0
    memory_mib: Positive = 512
    workers: Positive = 2
    deadline: AboveZero | None = 600.0

    def __post_init__(self) -> None:
        if (reason := problem(self.sandbox)) is not None:
            raise ValueError(reason)

    def open(self) -> "OpenCode":
        """Returns the term with its threads."""
        return OpenCode(self)

    def __call__(self, episodes: Sequence[Episode]) -> list[float | None]:
        with closing(self.open()) as live:
            return live(episodes)


class OpenCode:
    """A `Code` with threads, each of which waits for the sandboxes of one response."""

    def __init__(self, term: Code):
        self.term = term
        self.threads = ThreadPoolExecutor(term.workers, "code")
        memory = term.memory_mib * 2**20
        self.limits = ProcessLimits(memory=memory, seconds=term.response_seconds)

    def __call__(self, episodes: Sequence[Episode]) -> list[float | None]:
        grades = []
        for grade in self.threads.map(self.grade, episodes):
            grades.append(grade)
            item_done()
        return with_nan(grades, "graded")

    def close(self) -> None:
        self.threads.shutdown(cancel_futures=True)

    def grade(self, episode: Episode) -> float | Ungradable | None:
        metadata, row = episode.prompt.metadata, f"of the row {episode.prompt.id}"
        tests, setup = metadata.get("tests"), metadata.get("setup")
        if tests is None:
            return None
        if isinstance(tests, str):  # a list as JSON text, in a table
            try:
                tests = json.loads(tests)
            except (ValueError, RecursionError):
                return Ungradable(f"{row}: its tests are a text, but no list in JSON")
        tests, setup = plain_list(tests), "" if setup is None else setup
        if tests is None or not are_tests(tests) or not isinstance(setup, str):
            return Ungradable(
                f'{row}: its tests are no list of Python strings or of {{"input": ..., "output": '
                "...}, or its setup is no string"
            )
        rest = after_thoughts(episode.response, episode.prompt.generation_prompt)
        if rest is None:
            return 0.0
        code = code_of(rest).encode("utf-8", "surrogatepass")
        until = time.monotonic() + self.term.response_seconds
        if isinstance(tests[0], str):
            passed = self.by_calls(code, tests, setup, until)
        else:
            passed = self.by_output(code, tests, until)
        if passed is None:
            return Ungradable("its sandbox failed")
        return passed / len(tests) if self.term.partial else float(passed == len(tests))

    def by_calls(self, code: bytes, tests: Sequence[Any], setup: str, until: float) -> int | None:
        """Returns how many tests pass, or None if a sandbox failed."""
        task = json.dumps({"setup": setup, "tests": tests, "all": not self.term.partial}).encode()
        with ExitStack() as stack:
            files = [stack.enter_context(file_of(content)).fileno() for content in (code, task)]
            with ExitStack() as ends:  # a process that dies closes its pipes only if we do too
                requests, replies = os.pipe(), os.pipe()  # each: to read, to write
                for end in (*requests, *replies):
                    ends.callback(os.close, end)
                solution = start(
                    self.term.sandbox,
                    {"mode": "solution", "code": files[0]},
                    self.limits,
                    stdin=requests[0],
                    stdout=replies[1],
                    stderr=subprocess.DEVNULL,
                    inherited=files[:1],
                )
                stack.enter_context(closing(solution))
                pipes = {"requests": requests[1], "replies": replies[0]}
                tester = start(
                    self.term.sandbox,
                    {"mode": "tests", "code": files[1], **pipes},
                    self.limits,
                    stderr=subprocess.DEVNULL,
                    inherited=[files[1], *pipes.values()],
                )
                stack.enter_context(closing(tester))
            lines = output(tester, until)[0].split()
        return lines.count(b"passed") if lines[:1] == [b"started"] else None

    def by_output(
        self, code: bytes, tests: Sequence[Mapping[str, str]], until: float
    ) -> int | None:
        """Returns how many tests pass, or None if a sandbox failed."""
        passed = 0
        for test in tests:
            started, ended, written = self.outcome(code, test["input"], until)
            if not started:
                return None
            right = ended and same_output(written.decode(errors="replace"), test["output"])
            passed += right
            if not (right or self.term.partial) or time.monotonic() >= until:
                break
        return passed

    def outcome(self, code: bytes, text: str, until: float) -> tuple[bool, bool, bytes]:
        """Runs code as a script; returns whether it started, whether it ended, and its output."""
        with ExitStack() as stack:
            contents = code, text.encode("utf-8", "surrogatepass")
            file, stdin = [stack.enter_context(file_of(content)) for content in contents]
            ready, signal = os.pipe()
            stack.callback(os.close, ready)
            try:
                process = start(
                    self.term.sandbox,
                    {"mode": "program", "code": file.fileno(), "ready": signal},
                    self.limits,
                    stdin=stdin,
                    stderr=subprocess.DEVNULL,
                    inherited=[file.fileno(), signal],
                )
            finally:
                os.close(signal)
            with closing(process):
                written, ended = output(process, until)
            return os.read(ready, 1) == b"!", ended, written


def code_of(response: str) -> str:
    """Returns the last complete block of three backticks; without any, the whole response."""
    parts = response.split("```")
    if len(parts) == 1:
        return response
    blocks = parts[1:-1:2]
    if not blocks:
        return ""  # cut off
    language, newline, rest = blocks[-1].partition("\n")
    return rest if newline and " " not in language.strip() else blocks[-1]


def same_output(given: str, expected: str) -> bool:
    """Returns whether two outputs are equal up to white space at the ends of lines."""
    lines = [[line.rstrip() for line in text.rstrip().split("\n")] for text in (given, expected)]
    return lines[0] == lines[1]


@contextmanager
def file_of(content: bytes) -> Generator[BinaryIO, None, None]:
    """Opens a file for reading only, which has no name any more."""
    with tempfile.NamedTemporaryFile(buffering=0) as file:
        file.write(content)
        opened = Path(file.name).open("rb")  # noqa: SIM115 closed below
    with opened:
        yield opened
