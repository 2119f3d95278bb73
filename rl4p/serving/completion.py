"""A completion as it grows: its tokens, their weight versions, its text, and why it ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rl4p.rollout.engine.batch import Chunk
from rl4p.serving.stops import Stops
from rl4p.serving.text import Incremental, Texts
from rl4p.types import Finish, Sampling

FINISH = {Finish.STOP: "stop", Finish.LENGTH: "length", Finish.ABORT: "abort"}


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a request wants of each of its completions.

    Attributes:
      sampling, max_tokens, end_ids, min_tokens, alternatives: as in `TokenSequence`.
      stops: strings that end a completion.
      keep_stop: whether the text includes the stop string or end token.
      skip_special: whether the text leaves special tokens out.
      logprobs: whether log-probabilities are wanted.
    """

    sampling: Sampling
    max_tokens: int
    end_ids: tuple[int, ...]
    min_tokens: int = 0
    alternatives: int = 0
    stops: tuple[str, ...] = ()
    keep_stop: bool = False
    skip_special: bool = True
    logprobs: bool = False


class Span(NamedTuple):
    """The tokens from `start` to `end`, which the weights of one version drew."""

    version: str
    start: int
    end: int


class Delta(NamedTuple):
    """What a completion gained since the last delta."""

    text: str
    start: int  # its first new token


class Completion:
    """One completion of a request.

    The text is decoded as tokens arrive only if that is needed: for a stream or for stop strings.

    Attributes:
      tokens, logprobs, alternatives: as in `Chunk`, from the first token.
      spans: the weight version of each token.
      finish: `stop`, `length` or `abort`; None while the completion grows.
      matched: the end token or stop string that ended it; None for any other reason.
    """

    def __init__(self, texts: Texts, wanted: Wanted, *, stream: bool) -> None:
        self.texts, self.wanted = texts, wanted
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.alternatives: list[list[tuple[int, float]]] = []
        self.spans: list[Span] = []
        self.finish: str | None = None
        self.matched: int | str | None = None
        self.stops = Stops(wanted.stops, keep=wanted.keep_stop) if wanted.stops else None
        self.incremental: Incremental | None = None
        if stream or wanted.stops:
            self.incremental = Incremental(texts, skip_special=wanted.skip_special)
        self.pieces: list[str] = []  # the text so far
        self.given = 0, 0  # how many pieces and tokens former deltas had

    def add(self, chunk: Chunk) -> None:
        """Adds new tokens; a stop string in their text ends the completion after its token."""
        if self.finish is not None:
            return
        tokens, finish = chunk.tokens, chunk.finish
        if self.incremental is not None:
            tokens, finish = self.read(tokens, finish)
        count = len(tokens)
        before = len(self.tokens)
        self.tokens += tokens
        self.logprobs += chunk.logprobs[:count]
        self.alternatives += chunk.alternatives[:count]
        if self.spans and self.spans[-1].version == chunk.version:
            self.spans[-1] = self.spans[-1]._replace(end=before + count)
        elif count:
            self.spans.append(Span(chunk.version, before, before + count))
        if finish is not None:
            self.finish = FINISH[finish]
            if finish is Finish.STOP and self.matched is None:
                self.matched = tokens[-1]

    def read(self, tokens: list[int], finish: Finish | None) -> tuple[list[int], Finish | None]:
        """Decodes new tokens; returns those that belong to the completion, and why it ends."""
        assert self.incremental is not None
        shown = self.shown(tokens, finish)
        if self.stops is None:
            self.pieces.append(self.incremental.feed(shown))
            if finish is not None:
                self.pieces.append(self.incremental.flush())
            return tokens, finish
        before = self.incremental.copy()
        text = self.incremental.feed(shown)
        if self.stops.occurs(text):
            for count, token in enumerate(shown, 1):  # which token completes it?
                certain, self.matched = self.stops.feed(before.feed([token]))
                self.pieces.append(certain)
                if self.matched is not None:
                    return tokens[:count], Finish.STOP
        self.pieces.append(self.stops.feed(text)[0])
        if finish is not None:
            self.pieces.append(self.stops.flush() + self.incremental.flush())
        return tokens, finish

    def shown(self, tokens: Sequence[int], finish: Finish | None) -> Sequence[int]:
        """Returns the tokens that the text has: an end token is none of them."""
        ends = finish is Finish.STOP and not self.wanted.keep_stop
        return tokens[:-1] if ends else tokens

    def text(self) -> str:
        """Returns the text so far; without a stream or stop strings, that of an ended one."""
        if self.incremental is not None:
            return "".join(self.pieces)
        finish = Finish.STOP if self.finish == "stop" else None
        shown = self.shown(self.tokens, finish)
        return self.texts.decode(shown, skip_special=self.wanted.skip_special)

    def delta(self) -> Delta:
        """Returns what is new since the last call."""
        pieces, tokens = self.given
        self.given = len(self.pieces), len(self.tokens)
        return Delta("".join(self.pieces[pieces:]), tokens)

    def versions(self, start: int = 0) -> list[dict[str, Any]]:
        """Returns the weight version of each token from `start`, as spans."""
        return [
            {"version": version, "start": max(begin, start), "end": end}
            for version, begin, end in self.spans
            if end > start
        ]
