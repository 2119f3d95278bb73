"""Samples as the browser shows them, read from a run folder or from a file of JSON lines."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rl4p.configuration.bounds import Natural, Positive
from rl4p.configuration.yaml_file import read_mapping
from rl4p.errors import InputError
from rl4p.runs.record import Record
from rl4p.runs.responses.sample import number, status_of

DEFAULT_TERM = "correct"


@dataclass(frozen=True, kw_only=True)
class Token:
    """A token of a response; None is absent.

    Attributes:
      in_loss: whether the update learned from it.
    """

    text: str
    id: int | None = None
    logprob: float | None = None
    in_loss: bool | None = None
    advantage: float | None = None


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A sample; None is absent, because an older version or another program wrote the line.

    Attributes:
      number: its number among the samples of its prompt.
      right: whether the deciding term is at least 1; None if it is absent or failed.
      rendered_prompt: the prompt in its chat template.
      tokens: the tokens of the response; [] if they are absent.
    """

    step: int | None
    id: str | None
    task: str | None
    number: int | None
    prompt: str
    response: str
    answer: str | None
    status: str | None
    length: int | None
    reward: float | None
    terms: Mapping[str, float]
    advantage: float | None
    right: bool | None
    rendered_prompt: str | None
    tokens: Sequence[Token] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Filter:
    """A choice of samples. None chooses all.

    Attributes:
      task: the task of the prompt.
      right: whether the answer is right.
      step: the step.
      search: a text in the prompt, the response, the answer or the id; case does not matter.
      longest: the number of samples to choose, those with the longest responses, longest first.
      limit: the most samples, from the newest.
    """

    task: str | None = None
    right: bool | None = None
    step: Natural | None = None
    search: str | None = None
    longest: Positive | None = None
    limit: Positive | Literal["all"] | None = None

    def __post_init__(self) -> None:
        if self.longest is not None and self.limit is not None:
            raise InputError("longest and limit are both numbers of samples: give one of them.")

    def chosen(self, samples: Sequence[Sample]) -> list[Sample]:
        """Returns the chosen samples without `limit`, the newest step first."""
        found = sorted(filter(self.has, samples), key=lambda sample: -(sample.step or 0))
        if self.longest is not None:
            found = sorted(found, key=lambda sample: -size(sample))[: self.longest]
        return found

    def has(self, sample: Sample) -> bool:
        texts = (sample.prompt, sample.response, sample.answer, sample.id)
        return (
            self.task in (None, sample.task)
            and self.right in (None, sample.right)
            and self.step in (None, sample.step)
            and (
                self.search is None
                or any(self.search.casefold() in text.casefold() for text in texts if text)
            )
        )


def size(sample: Sample) -> int:
    """Returns the length of a response in tokens, or in characters if that is absent."""
    return len(sample.response) if sample.length is None else sample.length


def read_samples(path: Path, term: str | None) -> tuple[list[Sample], str]:
    """Returns all samples of a run folder or file, and the term that decides what is right.

    Args:
      path: the folder of a run, or a file such as FILE.responses.jsonl of rl4p.generate.
      term: the reward term that decides; None takes the `evaluation.term` of the run.

    Raises:
      InputError: there are no samples, or a line is broken, or no sample has the term.
    """
    responses = path / "responses.jsonl"  # of an evaluation
    if path.is_dir() and responses.is_file():
        return read_samples(responses, term)
    if path.is_dir():
        rows = Record(path).samples()
        nothing = f"{path} has no samples: it is not the folder of a run, or samples.every was 0."
    elif path.is_file():
        rows, nothing = read_lines(path), f"{path} has no lines."
    else:
        raise InputError(f"{path} does not exist: give the folder of a run, or a .jsonl file.")
    if not rows:
        raise InputError(nothing)
    deciding = term or configured_term(path)
    names = {name for row in rows for name in terms_of(row)}
    if term is not None and term not in names:
        raise InputError(f"term={term} is not a term of these samples; they have {sorted(names)}.")
    return [sample(row, deciding) for row in rows], deciding


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the objects of a file of JSON lines; an incomplete last line is left out."""
    rows = []
    for place, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or "response" not in row:
            raise InputError(f'{path}, line {place} is not a JSON object with a "response".')
        rows.append(row)
    return rows


def configured_term(path: Path) -> str:
    """Returns the `evaluation.term` of a run, or the default."""
    config = path / "config.yaml"
    if not config.is_file():
        return DEFAULT_TERM
    evaluation = read_mapping(config).get("evaluation")
    return evaluation.get("term", DEFAULT_TERM) if isinstance(evaluation, dict) else DEFAULT_TERM


def sample(row: Mapping[str, Any], term: str) -> Sample:
    """Returns the sample of a line."""
    terms = terms_of(row)
    grade, tokens = terms.get(term), row.get("tokens")
    failed = row.get("valid") is False or grade is None or math.isnan(grade)
    length = tokens if isinstance(tokens, int) else row.get("length")
    tokens = tokens if isinstance(tokens, dict) else {}
    return Sample(
        step=row.get("step"),
        id=row.get("id"),
        task=row.get("task"),
        number=row.get("sample"),
        prompt=str(row.get("prompt", row.get("question", ""))),
        response=str(row["response"]),
        answer=row.get("answer"),
        status=shown_status(row),
        length=length,
        reward=None if row.get("valid") is False else number(row.get("reward")),
        terms=terms,
        advantage=number(row.get("advantage")),
        right=None if failed or grade is None else grade >= 1,
        rendered_prompt=tokens.get("prompt"),
        tokens=tokens_of(tokens),
    )


def shown_status(row: Mapping[str, Any]) -> str | None:
    """Returns the status of a line; one that is unknown stands as another program wrote it."""
    try:
        return status_of(row)
    except ValueError:
        return str(row.get("status") or row.get("finish"))


def terms_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Returns the grades of a line, without those that failed; an evaluation calls them grades."""
    found = row.get("terms") or row.get("grades") or {}
    return {name: float(grade) for name, grade in found.items() if grade is not None}


def tokens_of(tokens: Mapping[str, Any]) -> list[Token]:
    """Returns the tokens of a line; missing lists are absent in each token."""
    texts = tokens.get("texts") or []

    def column(name: str) -> Sequence[Any]:
        return tokens.get(name) or [None] * len(texts)

    mask = [None if inside is None else inside == "1" for inside in column("mask")]
    return [
        Token(text=text, id=id, logprob=number(p), in_loss=inside, advantage=number(advantage))
        for text, id, p, inside, advantage in zip(
            texts, column("ids"), column("logprobs"), mask, column("advantages"), strict=True
        )
    ]
