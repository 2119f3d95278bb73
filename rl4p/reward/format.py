"""The format of the response."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rl4p.types import Episode


@dataclass(frozen=True, kw_only=True)
class Format:
    """A grade of 1 if the whole response matches a regular expression (``.`` spans lines), else 0.

    The default pattern requires some working and then, at the very end, ``#### <number>``.
    """

    weight: float = 0.5
    pattern: str = r".*\S\s*#### -?[\d,.]+"

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"pattern {self.pattern!r} is not a valid regex: {error}") from None

    def __call__(self, episodes: Sequence[Episode]) -> Sequence[float]:
        pattern = re.compile(self.pattern, re.DOTALL)
        return [float(pattern.fullmatch(each.response) is not None) for each in episodes]
