"""A choice of a response: its tokens, their weight versions, its text, and why it ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rl4p.base.types import Finish, Sampling
from rl4p.engine.detokenizer import Detokenizer, IncrementalDetokenizer, StopStrings
from rl4p.engine.sequence import Chunk

FINISH = {Finish.STOP: "stop", Finish.LENGTH: "length", Finish.ABORT: "abort"}


@dataclass(frozen=True, kw_only=True)
class CompletionOptions:
    """The options of each choice of a request.

    Attributes:
      sampling, max_tokens, end_ids, min_tokens: as in `TokenSequence`.
      alternatives: how many tokens are returned beside each drawn token; None for no
        log-probabilities.
      stops: the strings that end a choice.
      keep_stop: whether the text includes the stop string or end token.
      skip_special: whether the text leaves special tokens out.
    """

    sampling: Sampling
    max_tokens: int
    end_ids: tuple[int, ...]
    min_tokens: int = 0
    alternatives: int | None = None
    stops: tuple[str, ...] = ()
    keep_stop: bool = False
    skip_special: bool = True


class VersionSpan(NamedTuple):
    """The tokens from `start` to `end`, which the weights of one version drew."""

    version: str
    start: int
    end: int


class Delta(NamedTuple):
    """The new text and tokens of a choice since the last delta."""

    text: str
    start: int  # its first new token


class Choice:
    """A choice of a request, which gains tokens until it ends.

    The text is decoded at the end, unless a stream or stop strings need it as tokens arrive.

    Attributes:
      tokens, logprobs, alternatives: as in `Chunk`, from the first token.
      spans: the weight version of each token.
      finish: `stop`, `length` or `abort`; None while it is unfinished.
      matched: the end token or stop string that ended it; None for any other reason.
    """

    def __init__(
        self, detokenizer: Detokenizer, options: CompletionOptions, *, stream: bool
    ) -> None:
        self.detokenizer, self.options = detokenizer, options
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.alternatives: list[list[tuple[int, float]]] = []
        self.spans: list[VersionSpan] = []
        self.finish: str | None = None
        self.matched: int | str | None = None
        self.stops = StopStrings(options.stops, keep=options.keep_stop) if options.stops else None
        self.incremental: IncrementalDetokenizer | None = None
        if stream or options.stops:
            self.incremental = IncrementalDetokenizer(
                detokenizer, skip_special=options.skip_special
            )
        self.pieces: list[str] = []  # the text so far
        self.sent = 0, 0  # the numbers of pieces and tokens in former deltas
        self.offset = 0  # of the next token in the text of `/v1/completions`

    def add(self, chunk: Chunk) -> None:
        """Adds new tokens; a stop string in their text ends the choice after its token."""
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
            self.spans.append(VersionSpan(chunk.version, before, before + count))
        if finish is not None:
            self.finish = FINISH[finish]
            if finish is Finish.STOP and self.matched is None:
                self.matched = tokens[-1]

    def read(self, tokens: list[int], finish: Finish | None) -> tuple[list[int], Finish | None]:
        """Decodes new tokens; returns those that belong to the choice, and why it ends."""
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
            for count, token in enumerate(shown, 1):  # which token completes the stop string?
                certain, self.matched = self.stops.feed(before.feed([token]))
                self.pieces.append(certain)
                if self.matched is not None:
                    return tokens[:count], Finish.STOP
        self.pieces.append(self.stops.feed(text)[0])
        if finish is not None:
            self.pieces.append(self.stops.flush() + self.incremental.flush())
        return tokens, finish

    def shown(self, tokens: Sequence[int], finish: Finish | None) -> Sequence[int]:
        """Returns the tokens of the text, which an end token is no part of."""
        ends = finish is Finish.STOP and not self.options.keep_stop
        return tokens[:-1] if ends else tokens

    def text(self) -> str:
        """Returns the text so far. It needs a stream, stop strings, or a choice that has ended."""
        if self.incremental is not None:
            return "".join(self.pieces)
        finish = Finish.STOP if self.finish == "stop" else None
        shown = self.shown(self.tokens, finish)
        return self.detokenizer.decode(shown, skip_special=self.options.skip_special)

    def delta(self) -> Delta:
        """Returns the text and tokens that are new since the last call."""
        pieces, tokens = self.sent
        self.sent = len(self.pieces), len(self.tokens)
        return Delta("".join(self.pieces[pieces:]), tokens)

    def versions(self, start: int = 0) -> list[dict[str, Any]]:
        """Returns the weight version of each token from `start`, as spans."""
        return [
            {"version": version, "start": max(begin, start), "end": end}
            for version, begin, end in self.spans
            if end > start
        ]


def empty_choices(count: int, detokenizer: Detokenizer, options: CompletionOptions) -> list[Choice]:
    """Returns the choices of a request for no tokens."""
    choices = [Choice(detokenizer, options, stream=False) for _ in range(count)]
    for choice in choices:
        choice.finish = "length"
    return choices
