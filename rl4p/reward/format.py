"""The format of the response."""

from collections.abc import Sequence
from dataclasses import dataclass

import regex

from rl4p.base.types import Episode
from rl4p.data.extraction import MARK, opening

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
        pattern = regex.compile(self.pattern, regex.DOTALL)
        return [self.grade(pattern, episode) for episode in episodes]

    def grade(self, pattern: "regex.Pattern[str]", episode: Episode) -> float:
        begun = opening(episode.prompt.generation_prompt) if MARK.search(self.pattern) else ""
        whole = grade(pattern, episode.response)
        return grade(pattern, begun + episode.response) if begun and whole == 0 else whole


def grade(pattern: "regex.Pattern[str]", response: str) -> float:
    """Returns 1 if the whole response matches, 0 if not, and nan if that takes too long."""
    try:
        return float(pattern.fullmatch(response, timeout=SECONDS, concurrent=True) is not None)
    except TimeoutError:
        return float("nan")
