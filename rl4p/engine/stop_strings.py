"""Stop strings, which may begin in one part of a text and end in another."""

from collections.abc import Sequence

from rl4p.engine.detokenizer import Detokenizer, IncrementalDetokenizer


class StopStrings:
    """A text that arrives in parts and ends before the first stop string.

    Text that may be the beginning of a stop string is held back.

    Args:
      stops: the stop strings, none of them empty.
      keep: whether the text ends after the stop string instead.
    """

    def __init__(self, stops: Sequence[str], *, keep: bool = False) -> None:
        self.stops = stops
        self.keep = keep
        self.held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """Returns the text that is certain by now, and the stop string if one occurs."""
        self.held += text
        matches = [(at, stop) for stop in self.stops if (at := self.held.find(stop)) >= 0]
        if matches:
            at, stop = min(matches, key=lambda pair: pair[0])
            certain, self.held = self.held[: at + len(stop) * self.keep], ""
            return certain, stop
        kept = max((overlap(self.held, stop) for stop in self.stops), default=0)
        certain = self.held[: len(self.held) - kept]
        self.held = self.held[len(certain) :]
        return certain, None

    def occurs(self, text: str) -> bool:
        """Returns whether a stop string occurs once the text is added; changes nothing."""
        whole = self.held + text
        return any(stop in whole for stop in self.stops)

    def flush(self) -> str:
        """Returns the text that was held back, at the end of the text."""
        held, self.held = self.held, ""
        return held


def overlap(text: str, stop: str) -> int:
    """Returns the length of the longest end of a text with which a stop string may begin."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


def stopped_at(
    detokenizer: Detokenizer, stops: Sequence[str], tokens: Sequence[int], end_ids: Sequence[int]
) -> int | None:
    """Returns the number of tokens up to the one that completes a stop string, or None.

    Special tokens and an end token are no part of the text.
    """
    shown = tokens[:-1] if tokens and tokens[-1] in end_ids else tokens
    whole = detokenizer.decode(shown)
    if not any(stop in whole for stop in stops):
        return None
    text, strings = IncrementalDetokenizer(detokenizer), StopStrings(stops)
    for count, token in enumerate(shown, 1):
        if strings.feed(text.feed([token]))[1] is not None:
            return count
    return None
