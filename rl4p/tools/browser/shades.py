"""The shades of tokens by their probability.

One hue from light to dark, which every kind of colour vision can order. The rarest tokens are also
underlined, for prints without colour.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Shade:
    """A class of tokens.

    Attributes:
      least: the least probability of its tokens.
      label: the class in words.
      terminal: its style for rich, with both colours, so that it can be read on any background.
    """

    least: float
    label: str
    terminal: str


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
