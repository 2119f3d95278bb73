"""The file of all responses, from which a repeated command goes on.

Next to FILE.jsonl, the kept responses, stand two files:

    FILE.responses.jsonl   one object per response: {"id": ..., "sample": 0, "response": ..., ...}
    FILE.settings.json     what the responses depend on

A line is appended as soon as its response exists. After a kill, an incomplete last line is removed,
and the responses that are missing are sampled. Other settings for the same files are refused.
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl4p.configuration.differences import differences
from rl4p.errors import InputError, RunError
from rl4p.runs.record import replace_file
from rl4p.runs.responses.sample import json_values
from rl4p.types import Question


@dataclass(frozen=True, kw_only=True)
class Response:
    """One response.

    Attributes:
      sample: its number among the responses to the prompt, from 0.
      finish: "stop", "length" or "abort" (`types.Finish`).
      length: its number of tokens, the end token included; None if a server does not tell.
      logprob: the log-probability of the whole response under the distribution that it was drawn
        from; None for a server.
    """

    question: Question
    sample: int
    text: str
    finish: str
    length: int | None = None
    logprob: float | None = None

    @property
    def row(self) -> dict[str, Any]:
        metadata = json_values(self.question.metadata)
        return {
            "id": self.question.id,
            "sample": self.sample,
            "task": self.question.task,
            "prompt": self.question.question,
            "answer": self.question.answer,
            "response": self.text,
            "finish": self.finish,
            "length": self.length,
            "logprob": self.logprob,
            **({"metadata": metadata} if metadata else {}),
        }


class Responses:
    """The responses to a list of questions, in memory and in their file.

    Only one process uses a file at a time.
    """

    def __init__(self, out: Path, questions: Iterable[Question], settings: Mapping[str, Any]):
        """Opens the file, or creates it.

        Args:
          out: the file of the kept responses.
          questions: all questions; their ids differ.
          settings: a tree of JSON values.

        Raises:
          InputError: another process uses the file, or it was made with other settings, or `out`
            exists and was made by something else.
          RunError: the file cannot be written.
        """
        self.path = out.with_suffix(".responses.jsonl")
        self.settings_path = out.with_suffix(".settings.json")
        self.questions = {question.id: question for question in questions}
        self.found: dict[tuple[str, int], Response] = {}
        self.added: Callable[[int], None] = lambda count: None  # told how many responses exist
        if out.exists() and not self.settings_path.exists():
            raise InputError(f"out={out} exists and was not made by rl4p.generate: name another.")
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            self.file = self.path.open("a+b", buffering=0)
        except OSError as error:
            raise InputError(f"out={out} cannot be written: {error.strerror}.") from None
        try:
            self.lock()
            self.check(out, settings)
            self.read()
        except InputError:
            self.close()
            raise

    def lock(self) -> None:
        """Refuses a second process. The lock ends with the process, however it ends."""
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"Another process is writing {self.path}.") from None

    def check(self, out: Path, settings: Mapping[str, Any]) -> None:
        """Compares the settings with those of the file, or writes them."""
        if not self.settings_path.exists():
            replace_file(self.settings_path, json.dumps(settings, indent=2) + "\n")
            os.truncate(self.path, 0)
            return
        try:
            before = json.loads(self.settings_path.read_text())
        except ValueError:
            raise InputError(
                f"{self.settings_path} is not JSON: delete it, or rename it."
            ) from None
        if changes := differences(before, json.loads(json.dumps(settings)), most=3):
            raise InputError(
                f"out={out} has responses of another command: {changes}. Name another file, or "
                "repeat that command."
            )

    def read(self) -> None:
        """Reads the lines of an earlier start, and removes an incomplete last line."""
        self.file.seek(0)
        content = self.file.read()
        end = content.rfind(b"\n") + 1
        os.truncate(self.path, end)
        for number, line in enumerate(content[:end].splitlines(), 1):
            try:
                row = json.loads(line)
                self.found[row["id"], row["sample"]] = Response(
                    question=self.questions[row["id"]],
                    sample=row["sample"],
                    text=row["response"],
                    finish=row["finish"],
                    length=row["length"],
                    logprob=row["logprob"],
                )
            except (ValueError, TypeError, KeyError):
                raise InputError(
                    f"{self.path}, line {number} is not a response to these prompts: delete "
                    f"{self.settings_path} to start again."
                ) from None

    def missing(self, question: Question, samples: int) -> list[int]:
        """Returns the numbers of the responses to a question that do not exist yet."""
        return [n for n in range(samples) if (question.id, n) not in self.found]

    def add(self, responses: Iterable[Response]) -> None:
        """Appends responses to the file, in one write."""
        new = list(responses)
        lines = "".join(json.dumps(response.row, sort_keys=True) + "\n" for response in new)
        try:
            self.file.write(lines.encode())
        except OSError as error:
            raise RunError(f"Cannot write {self.path}: {error.strerror}.") from error
        self.found |= {(response.question.id, response.sample): response for response in new}
        self.added(len(self.found))

    def in_order(self) -> list[Response]:
        """Returns all responses in the order of the questions and of the samples."""
        order = {question_id: i for i, question_id in enumerate(self.questions)}
        return [self.found[key] for key in sorted(self.found, key=lambda k: (order[k[0]], k[1]))]

    def rewrite(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Replaces the file, to add grades to its lines."""
        lines = "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows)
        replace_file(self.path, lines)

    def close(self) -> None:
        """Closes the file and releases it to other processes."""
        self.file.close()
