"""Terms for the form of a response: its format, tags, length and repetitions."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import regex

from rl4p.base.types import Episode, Finish
from rl4p.configuration.bounds import Positive, TopShare
from rl4p.data.extraction import MARK, TAGS, tagged_text, thoughts_in_prompt
from rl4p.protocols.phases import Closes
from rl4p.protocols.reward import OpensTerm
from rl4p.protocols.traits import TermTraits

SECONDS = 5.0  # of the process's CPU time, to match a response


@dataclass(frozen=True, kw_only=True)
class Format:
    """A grade of 1 if the whole response matches a regular expression (``.`` spans lines), else 0.

    If the pattern has a tag of thoughts, such as ``<think>``, the response may also match with the
    tag that the chat template wrote before it.

    The default pattern requires some working and then, at the very end, ``#### <number>``.

    Some patterns, such as ``(a|aa)+b``, take longer than the universe exists to refuse a response.
    The library regex stops after `SECONDS`, which makes the sample invalid, and other threads go on
    meanwhile; the module re of Python does neither. Patterns that both accept mean the same.
    """

    weight: float = 0.5
    pattern: str = r".*\S\s*#### -?[\d,.]+"

    def __post_init__(self) -> None:
        try:
            regex.compile(self.pattern)
        except regex.error as error:
            raise ValueError(f"pattern {self.pattern!r} is not a valid regex: {error}") from None

    def __call__(self, episodes: Sequence[Episode]) -> Sequence[float]:
        pattern, grades = regex.compile(self.pattern, regex.DOTALL), []
        tagged = MARK.search(self.pattern) is not None
        for episode in episodes:
            grade, response = 0.0, episode.response
            begin = thoughts_in_prompt(episode.prompt.generation_prompt) if tagged else ""
            for text in dict.fromkeys((response, begin + response)):
                try:
                    matched = pattern.fullmatch(text, timeout=SECONDS, concurrent=True)
                    grade = float(matched is not None)
                except TimeoutError:
                    grade = math.nan
                if grade != 0:
                    break
            grades.append(grade)
        return grades


@dataclass(frozen=True, kw_only=True)
class Tags:
    """The share of the required tags that occur exactly once and in the required order.

        grade = (length of the longest increasing sequence of tags) / (number of tags)

    Tags that are absent or occur several times, overlapping ones too, do not count. Tags that the
    chat template wrote at the end of the prompt belong to the response. The others are put in the
    order in which they stand in the response, and the longest part of it that agrees with the
    required order counts: of `<a>`, `</a>`, `<b>`, the response `<a> <b> </a>` has two in order, a
    grade of 2/3.

    Attributes:
      tags: the tags in the order that is required.
    """

    weight: float = 0.5
    tags: tuple[str, ...] = TAGS

    def __post_init__(self) -> None:
        if not self.tags or "" in self.tags or len(set(self.tags)) < len(self.tags):
            raise ValueError(
                f"tags={list(self.tags)} must be different texts, at least one: write "
                "['<answer>','</answer>']."
            )
        inside = [(a, b) for a in self.tags for b in self.tags if a != b and a in b]
        if inside:
            raise ValueError(
                f"tags has {inside[0][0]}, which is also part of {inside[0][1]} and would occur "
                "twice: write tags that do not contain each other."
            )

    def __call__(self, episodes: Sequence[Episode]) -> Sequence[float]:
        grades = []
        for episode in episodes:
            text = tagged_text(episode, self.tags)
            ends: list[int] = []  # of the shortest-ending increasing sequence of each length
            for tag in self.tags:
                place = text.find(tag)
                if place >= 0 and text.find(tag, place + 1) < 0:
                    ends[bisect_left(ends, place) : bisect_left(ends, place) + 1] = [place]
            grades.append(len(ends) / len(self.tags))
        return grades


@dataclass(frozen=True, kw_only=True)
class Overlong:
    """The soft overlong punishment of DAPO (2503.14476, equation 13): a grade from -1 to 0.

        0                                    if n <= L - C
        ((L - C) - n) / C                    if L - C < n <= L
        -1                                   if n > L

    n is the number of tokens of the response with its end token, L is `max_tokens`, and C is
    `ramp` x L. A response that was cut at L gets -1. A response whose number of tokens is not known
    is invalid: for example a text of a file, or of a server that does not report the number.

    Attributes:
      max_tokens: L, usually `max_response_tokens`.
      ramp: the share of L at its end over which the grade falls; DAPO's is 4096 of 20480.
    """

    weight: float = 1.0
    max_tokens: Positive
    ramp: TopShare = 0.2

    def __call__(self, episodes: Sequence[Episode]) -> Sequence[float]:
        ramp = self.ramp * self.max_tokens
        start = self.max_tokens - ramp
        return [
            math.nan if x.tokens is None else -min(1.0, max(0.0, (x.tokens - start) / ramp))
            for x in episodes
        ]


@dataclass(frozen=True, kw_only=True)
class CosineLength:
    """The cosine reward (2502.03373, section 4.2): length changes the grade of right and wrong.

        grade = end + (start - end) (1 + cos(pi n / L)) / 2
        grade = exceeded                                       if n >= L, or the response was cut

    n is the number of tokens of the response with its end token, and L is `max_tokens`. (start,
    end) are the grades of a response of length 0 and of length L: `right_start`, `right_end` if the
    response is right, otherwise `wrong_start`, `wrong_end`. By default a right response should be
    short, and a wrong one long, which encourages more thought.

    It takes the place of a term of correctness in the total. The paper's formula interpolates from
    the other end, its text and figures as here.

    Attributes:
      of: the term that decides whether a response is right: its grade is then at least 1. It must
        not be asynchronous, and its own weight must be 1, as it has no effect. Where it does not
        apply, this term does not apply. Where it is invalid, or the number of tokens is not known,
        this term is invalid.
      max_tokens: L, usually `max_response_tokens`.
      exceeded: the grade of a response that is too long, or was cut.
    """

    weight: float = 1.0
    of: Any
    max_tokens: Positive
    right_start: float = 2.0
    right_end: float = 1.0
    wrong_start: float = -10.0
    wrong_end: float = 0.0
    exceeded: float = -10.0

    def __post_init__(self) -> None:
        traits = TermTraits.read(self.of)
        gradable = callable(self.of) or isinstance(self.of, OpensTerm)
        if not gradable or traits.whole_groups:
            raise ValueError("of must be a term that grades responses one by one, as correct does.")
        if traits.weight not in (None, 1.0):
            raise ValueError(
                f"of.weight={traits.weight} has no effect: write 1.0, and set weight instead."
            )

    def __call__(self, episodes: Sequence[Episode]) -> Sequence[float | None]:
        return self.grades(self.of(episodes), episodes)

    def open(self) -> "OpenCosineLength":
        """Returns the term with `of` opened, if that can be opened."""
        return OpenCosineLength(self, self.of.open() if isinstance(self.of, OpensTerm) else self.of)

    def grades(
        self, grades: Sequence[float | None], episodes: Sequence[Episode]
    ) -> Sequence[float | None]:
        """Returns the grades of episodes, given the grades of `of`."""
        result: list[float | None] = []
        for grade, episode in zip(grades, episodes, strict=True):
            n, L = episode.tokens, self.max_tokens
            if grade is None:
                result.append(None)
            elif not math.isfinite(grade) or n is None:
                result.append(math.nan)
            elif n >= L or episode.finish in (Finish.LENGTH, Finish.ABORT):
                result.append(self.exceeded)
            else:
                right = (self.right_start, self.right_end)
                start, end = right if grade >= 1 else (self.wrong_start, self.wrong_end)
                result.append(end + (start - end) * (1 + math.cos(math.pi * n / L)) / 2)
        return result


@dataclass(frozen=True)
class OpenCosineLength:
    """A `CosineLength` whose `of` is open."""

    term: CosineLength
    live: Any

    def __call__(self, episodes: Sequence[Episode]) -> Sequence[float | None]:
        return self.term.grades(self.live(episodes), episodes)

    def close(self) -> None:
        if isinstance(self.live, Closes):
            self.live.close()


@dataclass(frozen=True, kw_only=True)
class Repetition:
    """The share of a response's n-grams that stood in it before, as a grade from -1 to 0.

        grade = -(1 - (number of different n-grams) / (number of n-grams))

    A response with fewer than n pieces has the grade 0. 2502.03373 (section 4.3) penalizes repeated
    n-grams too, token by token; this is one number for the whole response.

    Attributes:
      n: the number of pieces of an n-gram.
      of: the pieces: `words` between white space, in lower case, or `characters`, for text
        without spaces.
    """

    weight: float = 0.5
    n: Positive = 4
    of: Literal["words", "characters"] = "words"

    def __call__(self, episodes: Sequence[Episode]) -> Sequence[float]:
        grades = []
        for episode in episodes:
            response = episode.response
            pieces = response.lower().split() if self.of == "words" else response
            count = len(pieces) - self.n + 1
            different = len({tuple(pieces[i : i + self.n]) for i in range(count)})
            grades.append(0.0 if count < 1 else different / count - 1)
        return grades
