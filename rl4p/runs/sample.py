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


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A sample. `to_dict` turns it into values of JSON, and `from_dict` back, without loss.

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
        """Returns the fields as JSON values, without those that are None or empty mappings."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        mappings = {key: dict(value) for key, value in found.items() if isinstance(value, Mapping)}
        found |= mappings | {"status": self.status.value}
        return {key: value for key, value in found.items() if value is not None and value != {}}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> "Sample":
        """Returns the sample of a dictionary; fields that are absent have their defaults.

        Lines of older runs have `finish` for `status`. Other keys are refused, so that none is
        lost.

        Raises:
          ValueError: the dictionary has no `prompt`, an unknown key or an unknown status.
        """
        row = dict(row)
        if "finish" in row and "status" not in row:
            finish = row.pop("finish")
            if finish not in OF_FINISH:
                raise ValueError(f"finish is {finish!r}, not one of {', '.join(OF_FINISH)}.")
            row["status"] = OF_FINISH[finish]
        names = [each.name for each in fields(cls)]
        if unknown := sorted(row.keys() - names):
            raise ValueError(f"a sample has no {unknown[0]}; its keys are {', '.join(names)}.")
        if "prompt" not in row:
            raise ValueError("a sample needs a prompt.")
        status = row.get("status", Status.PENDING)
        if status not in list(Status):
            raise ValueError(f"status is {status!r}, not one of {', '.join(Status)}.")
        found: dict[str, Any] = row | {"status": Status(status)}
        for key in ("reward", "advantage"):
            found[key] = number(row.get(key))
        found["terms"] = {name: number(x) for name, x in (row.get("terms") or {}).items()}
        return cls(**found)


def json_values(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Returns metadata as values of JSON; values that it lacks, such as dates, are texts."""
    return json.loads(json.dumps(dict(metadata), default=str))


def number(value: Any) -> float | None:
    """Returns a float; a record has "NaN" and "Infinity" as texts."""
    return None if value is None else float(value)
