"""What a server is asked for, and the strict reading of what it answers."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl4p.protocols.engine import Completion
from rl4p.types import Finish

LARGEST_LOGPROB = 1e-3  # rounding of a server may put a log-probability this far above 0


class LieError(Exception):
    """An answer that cannot be true. The message says why; nothing of the answer is used."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A request for one completion.

    Attributes:
      tokens: the context.
      seed: a number of `seed_bits` bits, from which the server draws.
      max_tokens: the most tokens, the end token included.
      temperature, top_k, top_p: as in `types.Sampling`.
      end_ids: the tokens that end a completion.
      vocabulary: the number of token ids.
      messages: the conversation that the tokens are of, for servers of chats; None if not known.
      tokenizer: makes tokens of the texts of servers that return no tokens.
    """

    tokens: Sequence[int]
    seed: int
    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    end_ids: Sequence[int]
    vocabulary: int
    messages: Sequence[Mapping[str, Any]] | None = None
    tokenizer: Any = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A completion that was read and checked; `finish` is ABORT for a fragment."""

    tokens: Sequence[int]
    logprobs: Sequence[float]
    finish: Finish

    def completion(self, version: int, engine: str) -> Completion:
        """Returns the completion of a weight version, which an engine drew."""
        return Completion(
            tokens=np.array(self.tokens, np.int32),
            logprobs=np.minimum(np.array(self.logprobs, np.float32), 0),
            versions=np.full(len(self.tokens), version, np.int32),
            finish=self.finish,
            engine=engine,
        )


EMPTY = Answer(tokens=(), logprobs=(), finish=Finish.ABORT)


def seed_of(key: np.ndarray, drawn: int, bits: int) -> int:
    """Returns the seed of a completion: a hash of its key data and of the tokens drawn before.

    A continued response gets another seed, since a server counts tokens from the start of its own
    completion and would draw with the same random numbers again.
    """
    words = np.asarray(key, np.uint32).tobytes() + np.uint32(drawn).tobytes()
    digest = hashlib.sha256(words).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - bits)


def checked(
    ask: Ask,
    tokens: Any,
    logprobs: Any,
    reason: Any,
    *,
    versions: Sequence[Any] = (),
    label: str = "",
) -> Answer:
    """Returns the answer to a request, if it can be true.

    Args:
      tokens, logprobs: the token ids and their log-probabilities.
      reason: why the completion ended: stop, length or abort.
      versions: the labels of the weights that drew the tokens, as far as the server tells them.
      label: the label of the current weights.

    Raises:
      LieError: anything is wrong.
    """
    if not isinstance(tokens, list) or not isinstance(logprobs, list):
        raise LieError("tokens or log-probabilities are no list")
    if len(tokens) != len(logprobs):
        raise LieError(f"{len(tokens)} tokens, but {len(logprobs)} log-probabilities")
    for token in tokens:
        if type(token) is not int or not 0 <= token < ask.vocabulary:
            raise LieError(f"{token!r} is no token id below {ask.vocabulary}")
    for logprob in logprobs:
        found = number(logprob)
        if found is None or not -float("inf") < found <= LARGEST_LOGPROB:
            raise LieError(f"{logprob!r} is no log-probability")
    if wrong := [x for x in versions if x != label]:
        raise LieError(f"tokens of the weights {wrong[0]!r}, but the current ones are {label!r}")
    return Answer(tokens=tokens, logprobs=logprobs, finish=finish_of(ask, tokens, reason))


def finish_of(ask: Ask, tokens: Sequence[int], reason: Any) -> Finish:
    """Returns why a completion ended, if the reason fits the tokens."""
    if len(tokens) > ask.max_tokens:
        raise LieError(f"{len(tokens)} tokens, but max_tokens={ask.max_tokens}")
    if any(token in ask.end_ids for token in tokens[:-1]):
        raise LieError("an end token before the end")
    if reason == "abort":
        return Finish.ABORT
    if not tokens:
        raise LieError("no tokens")
    ended = tokens[-1] in ask.end_ids
    if reason == "stop" and not ended:
        raise LieError(f"it stopped at the token {tokens[-1]}, which is no end token")
    if reason == "length" and len(tokens) < ask.max_tokens:
        raise LieError(f"it ended for its length of {len(tokens)}, below {ask.max_tokens}")
    if reason not in ("stop", "length"):
        raise LieError(f"it ended for the reason {reason!r}")
    return Finish.STOP if ended else Finish.LENGTH


def field(value: Any, *path: str | int) -> Any:
    """Returns the value at a path in nested mappings and lists.

    Raises:
      LieError: there is no such place.
    """
    for step in path:
        try:
            value = value[step]
        except (TypeError, LookupError):
            raise LieError(f"no {'.'.join(map(str, path))}") from None
    return value


def only_choice(value: Any) -> Any:
    """Returns the single completion of an answer that has a list of `choices`."""
    choices = field(value, "choices")
    if not isinstance(choices, list) or len(choices) != 1:
        count = len(choices) if isinstance(choices, list) else type(choices).__name__
        raise LieError(f"{count} completions, but 1 was asked for")
    return choices[0]


def number(value: Any) -> float | None:
    """Returns a number of an answer, or None if it is none."""
    if isinstance(value, float | int) and not isinstance(value, bool):
        return float(value)
    return None
