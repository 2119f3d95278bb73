"""The samples that the browser shows: their choice, their tokens and shades, and what is right.

The shades have one hue from light to dark, which every kind of colour vision can order. The rarest
tokens are also underlined, for prints without colour.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rl4p.base.errors import InputError
from rl4p.base.terminal import visible as shown
from rl4p.configuration.bounds import Natural, Positive
from rl4p.configuration.yaml_file import read_mapping
from rl4p.runs.sample import Sample, number, read_samples
from rl4p.tools.runs import deciding_term, judged

NEWLINE = "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}\n"


def visible(text: str) -> str:
    """Returns the text with a sign for each character that could not be seen, tabs included.

    A newline stays and gets a sign before it.
    """
    return shown(text, keep="\n").replace("\n", NEWLINE)


@dataclass(frozen=True, kw_only=True)
class Shade:
    """A class of tokens."""

    least: float  # the least probability of its tokens
    label: str  # the class in words
    terminal: str  # its style for rich, with both colours, so that it can be read on any background


SHADES = (
    Shade(least=0.9, label="p \N{GREATER-THAN OR EQUAL TO} 0.9", terminal=""),
    Shade(least=0.5, label="0.5 to 0.9", terminal="#08306b on #deebf7"),
    Shade(least=0.1, label="0.1 to 0.5", terminal="#08306b on #9ecae1"),
    Shade(least=0.01, label="0.01 to 0.1", terminal="#ffffff on #3182bd"),
    Shade(least=0.0, label="below 0.01", terminal="underline #ffffff on #08306b"),
)


def shade(logprob: float | None) -> int | None:
    """Returns the index of a token's shade; None if its log-probability is absent or nan."""
    if logprob is None or math.isnan(logprob):
        return None
    p = math.exp(min(logprob, 0.0))
    return next(i for i, each in enumerate(SHADES) if p >= each.least)


@dataclass(frozen=True, kw_only=True)
class Token:
    """A token of a response; None is absent."""

    text: str
    id: int | None = None
    logprob: float | None = None
    in_loss: bool | None = None  # whether the update learned from it
    advantage: float | None = None


@dataclass(frozen=True, kw_only=True)
class SampleFilter:
    """A choice of samples, as the help of `rl4p.samples` explains it. None chooses all."""

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
        chosen = sorted(filter(self.has, samples), key=lambda sample: -(sample.step or 0))
        if self.longest is not None:
            # In tokens, or in characters if their number is absent.
            chosen.sort(key=lambda x: -(len(x.response) if x.length is None else x.length))
            chosen = chosen[: self.longest]
        return chosen

    def has(self, sample: Sample) -> bool:
        texts = (sample.prompt, sample.response, sample.answer, sample.id)
        return (
            self.task in (None, sample.task)
            and self.right in (None, sample.correct)
            and self.step in (None, sample.step)
            and (
                self.search is None
                or any(self.search.casefold() in text.casefold() for text in texts if text)
            )
        )


def samples_in(path: Path, term: str | None) -> tuple[list[Sample], str]:
    """Returns all samples of a folder or file, and the term that decides what is `correct`.

    Args:
      path: the folder of a run or of an evaluation, or a file of samples.
      term: the reward term that decides; None takes the `evaluation.term` of the folder.
    """
    files = [path / name for name in ("responses.jsonl", "samples.jsonl")]
    source = next((each for each in files if each.is_file()), path)
    if source.is_dir():
        raise InputError(
            f"{path} has no samples: it is not the folder of a run, or samples.every was 0."
        )
    if not source.is_file():
        raise InputError(f"{path} does not exist: give the folder of a run, or a .jsonl file.")
    config = path / "config.yaml"
    deciding = term or deciding_term(read_mapping(config) if config.is_file() else {})
    samples = []
    for sample, place, _ in read_samples(source):
        try:
            tokens_of(sample)
        except (ValueError, TypeError):
            raise InputError(f"{place}: tokens must have lists of equal lengths.") from None
        if term is not None or sample.correct is None:
            sample = judged(sample, deciding)
        samples.append(sample)
    if not samples:
        raise InputError(f"{path} has no lines.")
    names = {name for sample in samples for name in grades_of(sample)}
    if term is not None and term not in names:
        raise InputError(f"term={term} is not a term of these samples; they have {sorted(names)}.")
    return samples, deciding


def grades_of(sample: Sample) -> dict[str, float]:
    """Returns the grades of a sample by term, without terms that gave none."""
    return {name: grade for name, grade in sample.terms.items() if grade is not None}


def tokens_of(sample: Sample) -> list[Token]:
    """Returns the tokens of a sample; a list that is absent is absent in each token.

    Raises:
      ValueError, TypeError: the lists have different lengths, or hold something else.
    """
    tokens: Mapping[str, Any] = sample.tokens or {}
    texts = tokens.get("texts") or []
    names = ("ids", "logprobs", "mask", "advantages")
    columns = [tokens.get(name) or [None] * len(texts) for name in names]
    return [
        Token(
            text=str(text),
            id=id,
            logprob=number(p),
            in_loss=None if inside is None else inside == "1",
            advantage=number(advantage),
        )
        for text, id, p, inside, advantage in zip(texts, *columns, strict=True)
    ]


def turn_title(number: int, turn: Mapping[str, Any]) -> str:
    """Returns the number of a turn, with what is known of it."""
    parts = (
        f"turn {number}",
        turn.get("role"),
        None if "reward" not in turn else f"reward {turn['reward']:.3g}",
        None if "tokens" not in turn else f"{turn['tokens']} tokens",
        f"weights {', '.join(map(str, turn['versions']))}" if turn.get("versions") else None,
        *(
            f"{words} in {turn[f'{name}_seconds']:.2f} s"
            for name, words in (("sampling", "sampled"), ("environment", "answered"))
            if f"{name}_seconds" in turn
        ),
        *(f"{name} {value:g}" for name, value in turn.get("metrics", {}).items()),
    )
    return "  ".join(part for part in parts if part)


def turn_lines(turn: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns what is shown of a turn: its calls, their answers, and the files that were changed.

    An answer stands behind its call. Each line has a kind, `command`, `call`, `output`, `code` or
    `files`, and a text. A text argument `command` is shown as in a shell; of its answer, the exit
    code is a line of its own.
    """
    calls, messages = turn.get("calls", ()), turn.get("messages", ())
    shown = []
    paired = len(calls) == len(messages)
    answers = [[message] for message in messages] if paired else [[] for _ in calls]
    for call, answer in zip(calls, answers, strict=True):
        command = command_of(call)
        shown.append(("call", call_text(call)) if command is None else ("command", command))
        shown += [line for each in answer for line in answer_lines(each, command is not None)]
    if not paired:
        commands = any(command_of(call) is not None for call in calls)
        shown += [line for each in messages for line in answer_lines(each, commands)]
        shown += [("code", "no answer")] if not messages else []
    if files := turn.get("files"):
        sizes = ", ".join(f"{name} ({size:,} bytes)" for name, size in files.items())
        shown.append(("files", f"files changed: {sizes}"))
    return shown


def command_of(call: Mapping[str, Any]) -> str | None:
    """Returns the command of a call as a shell shows it; None if the call has none."""
    arguments = call.get("arguments")
    match arguments:
        case {"command": str(command)} if len(arguments) == 1:
            return "$ " + command.replace("\n", "\n> ")
    return None


def call_text(call: Mapping[str, Any]) -> str:
    """Returns a call with its arguments; texts of several lines stand below it."""
    if "malformed" in call:
        return f"malformed call: {call['malformed']}"
    arguments, below = call.get("arguments"), {}
    if isinstance(arguments, Mapping):
        below = {k: v for k, v in arguments.items() if isinstance(v, str) and "\n" in v}
        arguments = {k: "below" if k in below else v for k, v in arguments.items()}
    texts = [f"\n{name}:\n{text}" for name, text in below.items()]
    return f"calls {call.get('name')}({json.dumps(arguments, ensure_ascii=False)})" + "".join(texts)


def answer_lines(message: Mapping[str, Any], of_command: bool) -> list[tuple[str, str]]:
    """Returns what a message says, and the exit code at its end if it answers a command."""
    content = str(message.get("content"))
    end = re.search(r"(?:^|\n)\[(exit code \d+|killed .*)\]$", content) if of_command else None
    if end is None:
        return [("output", f"{message.get('role')}: {content}")]
    output = content[: end.start()]
    return [*([("output", output)] if output else []), ("code", end[1])]
