"""The record of a sample: a prompt, its response and the grades, as a line of JSON."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """How far a response is."""

    PENDING = "pending"  # it is not sampled, or not to its end
    COMPLETED = "completed"  # the policy chose an end token
    TRUNCATED = "truncated"  # it reached the token limit
    ABORTED = "aborted"  # the engine aborted it


# The value of `finish`, which lines of older runs have in the place of `status`.
OF_FINISH = {"stop": Status.COMPLETED, "length": Status.TRUNCATED, "abort": Status.ABORTED}

# The types of the fields that are neither a status nor a number, and their names in words.
KINDS: dict[str, tuple[type, str]] = {
    **dict.fromkeys(("prompt", "answer", "response", "id", "task"), (str, "a text")),
    **dict.fromkeys(("step", "sample", "length"), (int, "an integer")),
    **dict.fromkeys(("metadata", "terms", "tokens"), (Mapping, "an object")),
    "valid": (bool, "true or false"),
}


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A sample. `to_dict` turns it into values of JSON, and `from_dict` back, without loss.

    A record (`record.py`) writes a number that is not finite as a text. `from_dict` reads it back
    as a number in the reward, the terms and the advantage; in metadata and tokens it stays a text.

    Attributes:
      prompt: the question, without its chat template.
      answer: the reference answer.
      response: the text of the response; "" before there is one.
      status: how far the response is.
      step: the step of training that drew it.
      id, task: those of the prompt.
      sample: the number of the sample among the samples of its prompt, from 0.
      metadata: other values of the prompt, for graders.
      length: the number of tokens of the response, the end token included.
      reward: the total.
      terms: the unweighted terms by name; None where one does not apply.
      valid: whether the sample could be graded.
      advantage: the mean advantage of its tokens in the loss.
      tokens: the values of its tokens by name, as lists or texts (`samples.py`).
    """

    prompt: str
    answer: str | None = None
    response: str = ""
    status: Status = Status.PENDING
    step: int | None = None
    id: str | None = None
    task: str | None = None
    sample: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    length: int | None = None
    reward: float | None = None
    terms: Mapping[str, float | None] = field(default_factory=dict)
    valid: bool | None = None
    advantage: float | None = None
    tokens: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as JSON values, without None, and without empty metadata and terms."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        mappings = {key: dict(value) for key, value in found.items() if isinstance(value, Mapping)}
        found |= mappings | {"status": self.status.value}
        empty = [key for key in ("metadata", "terms") if not found[key]]
        return {k: value for k, value in found.items() if value is not None and k not in empty}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> "Sample":
        """Returns the sample of a dictionary; fields that are absent have their defaults.

        Lines of older runs have `finish` for `status`. Other keys are refused, so that none is
        lost.

        Raises:
          ValueError: the dictionary has no `prompt`, an unknown key or an unknown status, or a
            value has a wrong type.
        """
        row = dict(row)
        status = status_of(row)
        if row.get("status") is None:
            row.pop("finish", None)
        names = [each.name for each in fields(cls)]
        if unknown := sorted(row.keys() - names):
            raise ValueError(f"a sample has no {unknown[0]}; its keys are {', '.join(names)}.")
        if "prompt" not in row:
            raise ValueError("a sample needs a prompt.")
        optional = [each.name for each in fields(cls) if each.default is None]
        for key, (kind, wanted) in KINDS.items():
            value = row.get(key)
            if key not in row or (value is None and key in optional):
                continue
            if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
                raise ValueError(f"{key} must be {wanted}, not {value!r}.")
        found: dict[str, Any] = row | {"status": status or Status.PENDING}
        for key in ("reward", "advantage"):
            found[key] = number(row.get(key))
        found["terms"] = {name: number(x) for name, x in row.get("terms", {}).items()}
        return cls(**found)


def status_of(row: Mapping[str, Any]) -> Status | None:
    """Returns the status of a line, or that of its `finish`; None if it has neither.

    Raises:
      ValueError: the status or the reason is unknown.
    """
    for key, known in (("status", {each.value: each for each in Status}), ("finish", OF_FINISH)):
        if (value := row.get(key)) is not None:
            if not isinstance(value, str) or value not in known:
                raise ValueError(f"{key} is {value!r}, not one of {', '.join(known)}.")
            return known[value]
    return None


def json_values(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Returns metadata as values of JSON; values that it lacks, such as dates, are texts."""
    return json.loads(json.dumps(dict(metadata), default=str))


def number(value: Any) -> float | None:
    """Returns a float; a record has "NaN" and "Infinity" as texts.

    Raises:
      ValueError: the value is no number.
    """
    try:
        return None if value is None else float(value)
    except (ValueError, TypeError, OverflowError):
        raise ValueError(f"{value!r} is not a number.") from None
