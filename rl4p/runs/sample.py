"""The record of a sample: a prompt, one response to it and its grades, as a line of JSON.

Runs (samples.jsonl), evaluations, generations and graded files have the same keys. The key of a
value that is not known is absent.
"""

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl4p.base.errors import InputError
from rl4p.configuration.tree import differences
from rl4p.data.fields import parse_line, without_exponent
from rl4p.runs.record import append_lines, finite, json_lines, read_lines, replace_file

if TYPE_CHECKING:
    from rl4p.base.types import Question


class Status(StrEnum):
    """The reason why a response ended."""

    COMPLETED = "completed"  # the policy chose an end token
    TRUNCATED = "truncated"  # it reached the token limit
    ABORTED = "aborted"  # the engine aborted it


STATUSES = ", ".join(Status)
TEXT, COUNT, OBJECT = (str, "a text"), (int, "a natural number"), (Mapping, "an object")
NUMBER, FLAG = (int | float | str, "a number"), (bool, "true or false")
# The type of each field, and its name in words. Numbers may be texts, such as "NaN".
KINDS: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(("prompt", "response", "answer", "id", "task", "generation_prompt"), TEXT),
    "failure": TEXT,
    "turns": (list, "a list of turns"),
    **dict.fromkeys(("step", "sample", "seed", "length"), COUNT),
    **dict.fromkeys(("metadata", "terms", "tokens"), OBJECT),
    **dict.fromkeys(("logprob", "reward", "advantage"), NUMBER),
    **dict.fromkeys(("valid", "correct", "regraded"), FLAG),
    "status": (str, f"one of {STATUSES}"),
}


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A sample. `to_dict` turns it into values of JSON, and `from_dict` back, without loss.

    A file (`record.py`) has a number that is not finite as a text. `from_dict` reads it back as a
    number in the reward, the terms, the advantage and the log-probability; in metadata and tokens
    it stays a text.
    """

    prompt: str  # the question, without its chat template
    # The text of the response. Of a demonstration with several answers it is the last.
    response: str
    answer: str | None = None  # the reference answer
    # What the chat template wrote before the response, such as ``<|assistant|><think>``, which
    # graders need to find the end of the thoughts.
    generation_prompt: str | None = None
    # id, task: the id and the task of the prompt
    id: str | None = None
    task: str | None = None
    # Other values of the prompt, for graders; those that JSON does not have, such as dates, are
    # texts.
    metadata: Mapping[str, Any] = field(default_factory=dict)
    step: int | None = None  # the step of training that drew it
    # The number of the sample among the samples of its prompt, from 0; None if it is greedy.
    sample: int | None = None
    seed: int | None = None  # the seed of a sample of an evaluation
    status: Status | None = None  # why it ended
    # The number of tokens of the response, the end token included; of a demonstration with several
    # answers, the tokens of all.
    length: int | None = None
    # The log-probability of the response under the distribution that it was drawn from.
    logprob: float | None = None
    reward: float | None = None  # the weighted sum of the terms; None if it could not be graded
    # The unweighted terms by name; None where one does not apply or a grader failed.
    terms: Mapping[str, float | None] = field(default_factory=dict)
    valid: bool | None = None  # whether it could be graded: no grader failed, and a term applies
    # Whether the term that decides in an evaluation is at least 1; None if it gave no grade.
    correct: bool | None = None
    regraded: bool | None = None  # whether `rl4p.regrade` wrote the grades
    # The mean advantage of its tokens in the loss; None if there are none.
    advantage: float | None = None
    # The values of its tokens, as lists or texts: {"prompt": the prompt in its chat template, up to
    # the first answer, "ids": [...], "texts": [...], "logprobs": [...], under the policy that
    # sampled them, "mask": "1110", 1 where the token is in the loss, "advantages": [...], only if
    # they differ between tokens}.
    tokens: Mapping[str, Any] | None = None
    # The turns of an episode, in order: {"text": the message of the policy, "tokens": their number,
    # "calls": the tools that it calls, "messages": the answer of the environment, "reward",
    # "metrics", "state", "role", "versions": the weight versions that drew it, "files": the sizes
    # of the files that the episode has changed, "sampling_seconds", "environment_seconds"}.
    turns: Sequence[Mapping[str, Any]] | None = None
    failure: str | None = None  # what the environment did wrong, which made the sample invalid

    @classmethod
    def response_to(cls, question: "Question", text: str, **values: Any) -> "Sample":
        """Returns the sample of a response to a question, with other fields by name."""
        return cls(
            prompt=question.question,
            response=text,
            answer=question.answer,
            generation_prompt=getattr(question, "generation_prompt", None),
            id=question.id,
            task=question.task,
            metadata=json.loads(json.dumps(dict(question.metadata), default=str)),
            **values,
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as JSON values, without None, and without empty metadata and terms."""
        row = {each.name: getattr(self, each.name) for each in fields(self)}
        row |= {key: dict(value) for key, value in row.items() if isinstance(value, Mapping)}
        empty = [key for key in ("metadata", "terms") if not row[key]]
        return {k: value for k, value in row.items() if value is not None and k not in empty}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> "Sample":
        """Returns the sample of a dictionary; null is the same as an absent key.

        A number is also accepted as a text in `id` and `answer`.

        Raises:
          ValueError: the dictionary has no prompt, no response or an unknown key, or a value has a
            wrong type.
        """
        if unknown := sorted(row.keys() - KINDS.keys()):
            raise ValueError(f"a sample has no {unknown[0]}; its keys are {', '.join(KINDS)}")
        values = {key: value for key, value in row.items() if value is not None}
        for key in ("prompt", "response"):
            if key not in values:
                raise ValueError(f"a sample needs a {key}; this one has {', '.join(sorted(row))}")
        for key in ("id", "answer"):
            values[key] = without_exponent(row.get(key)) or row.get(key)
        for key, value in values.items():
            kind, words = KINDS[key]
            wrong = not isinstance(value, kind) or isinstance(value, bool) != (kind is bool)
            if value is not None and (wrong or (kind is int and value < 0)):
                raise ValueError(f"{key} must be {words}, not {json.dumps(value)[:80]}")
        if "status" in values:
            if values["status"] not in list(Status):
                raise ValueError(f"status is {values['status']!r}, not one of {STATUSES}")
            values["status"] = Status(values["status"])
        for turn in values.get("turns", ()):
            check_turn(turn)
        for key in ("logprob", "reward", "advantage"):
            values[key] = number(values.get(key))
        values["terms"] = {name: number(x) for name, x in values.get("terms", {}).items()}
        return cls(**values)


TURN: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(("text", "state", "role"), TEXT),
    **dict.fromkeys(("messages", "calls", "versions"), (list, "a list")),
    **dict.fromkeys(("metrics", "files"), OBJECT),
    "tokens": COUNT,
    **dict.fromkeys(
        ("reward", "sampling_seconds", "environment_seconds"), (int | float, "a number")
    ),
}


def check_turn(turn: Any) -> None:
    """Refuses what is no turn."""
    if not isinstance(turn, Mapping) or "text" not in turn:
        raise ValueError("a turn is an object with a text")
    for key, value in turn.items():
        kind, words = TURN.get(key, (None, ""))
        if kind is None:
            raise ValueError(f"a turn has no {key}; its keys are {', '.join(TURN)}")
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f"{key} of a turn must be {words}, not {json.dumps(value)[:80]}")
    for key in ("messages", "calls"):
        if not all(isinstance(each, Mapping) for each in turn.get(key, ())):
            raise ValueError(f"{key} of a turn must be a list of objects")
    for name, value in turn.get("metrics", {}).items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"metrics of a turn must be numbers, and {name} is not")


def number(value: Any) -> float | None:
    """Returns a float; a file has "NaN" and "Infinity" as texts."""
    try:
        return None if value is None else float(value)
    except (ValueError, TypeError, OverflowError):
        raise ValueError(f"{json.dumps(value)[:80]} is not a number") from None


def read_samples(path: Path, *, unfinished: bool = False) -> Iterator[tuple[Sample, str, int]]:
    """Yields the samples of a file, each with its place in words and the offset after its line.

    Args:
      unfinished: whether a last line without a line feed counts.
    """
    try:
        for number, (line, end) in enumerate(read_lines(path, unfinished=unfinished), 1):
            place = f"{path}, line {number}"
            if line.strip():
                row = parse_line(line, place)
                try:
                    sample = Sample.from_dict(finite(row))
                except (ValueError, RecursionError) as error:  # nesting too deep to write again
                    raise InputError(f"{place}: {error}.") from None
                yield sample, place, end
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None


def recorded_samples(path: Path) -> list[Sample]:
    """Returns the samples of a file; none if there is no file."""
    return [sample for sample, _, _ in read_samples(path)] if path.exists() else []


class SampleFile:
    """The file of a job's responses. The same command continues it after a kill.

    A line is appended as soon as its response exists. An incomplete last line is removed. A second
    file has the settings that the responses depend on, and only one process uses both at a time.
    """

    def __init__(self, path: Path, settings_path: Path, out: Path) -> None:
        """Opens the file, or creates it. Without the file of its settings it becomes empty."""
        self.path, self.settings_path, self.out = path, settings_path, out
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file = path.open("ab")
        except OSError as error:
            raise InputError(f"out={out} cannot be written: {error.strerror}.") from None
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process
            if not settings_path.exists():
                os.truncate(path, 0)
            self.samples = recorded_samples(path)
            self.keep(len(self.samples))
        except OSError:
            self.close()
            raise InputError(f"Another process is writing {path}.") from None
        except InputError:
            self.close()
            raise

    def check(self, settings: Mapping[str, Any]) -> None:
        """Saves the settings; if there are samples, compares them with the saved ones instead."""
        if not self.samples:
            replace_file(self.settings_path, json.dumps(settings, indent=2) + "\n")
            return
        before = parse_line(self.settings_path.read_bytes(), str(self.settings_path))
        if changes := differences(before, json.loads(json.dumps(settings)), most=3):
            raise InputError(
                f"out={self.out} has responses of another command: {changes}. Choose another out, "
                "or repeat that command."
            )

    def keep(self, count: int) -> None:
        """Removes all but the first `count` samples, and an incomplete line."""
        ends = [0, *(end for _, _, end in read_samples(self.path))]
        os.truncate(self.path, ends[count])
        del self.samples[count:]

    def append(self, samples: Iterable[Sample]) -> None:
        """Appends samples in one write."""
        new = list(samples)
        append_lines(self.path, [sample.to_dict() for sample in new])
        self.samples += new

    def replace(self, samples: Iterable[Sample]) -> None:
        """Replaces all samples, atomically."""
        self.samples = list(samples)
        replace_file(self.path, json_lines(sample.to_dict() for sample in self.samples))

    def close(self) -> None:
        """Closes the file and releases it to other processes."""
        self.file.close()
