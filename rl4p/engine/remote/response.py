"""A request for one completion, and the strict reading of its response."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl4p.base.http import InvalidResponseError
from rl4p.base.types import Finish, Sampling
from rl4p.protocols.engine import Completion

GREEDY = Sampling(temperature=0.0)
LARGEST_LOGPROB = 1e-3  # rounding of a server may put a log-probability this far above 0


@dataclass(frozen=True, kw_only=True)
class ServerRequest:
    """A request for one completion.

    Attributes:
      tokens: the context.
      seed: a number of `seed_bits` bits, from which the server draws.
      max_tokens: the most tokens, the end token included.
      sampling: the distribution; temperature 0 is the argmax.
      end_ids: the tokens that end a completion.
      vocabulary: the number of token ids.
      version: the weight version of the completion; -1 if no policy draws it.
      label: the label of the weights that have to draw the tokens.
      messages: the conversation of the context, for chat servers; None if it is not known.
      tokenizer: tokenizes the texts of servers that return no tokens.
    """

    tokens: Sequence[int]
    seed: int = 0
    max_tokens: int = 1
    sampling: Sampling = GREEDY
    end_ids: Sequence[int] = ()
    vocabulary: int = 0
    version: int = -1
    label: str = ""
    messages: Sequence[Mapping[str, Any]] | None = None
    tokenizer: Any = None

    def completion(
        self, engine: str, tokens: Sequence[int], logprobs: Sequence[float], finish: Finish
    ) -> Completion:
        """Returns the completion that a server drew; rounding above 0 becomes 0."""
        return Completion(
            tokens=np.array(tokens, np.int32),
            logprobs=np.minimum(np.array(logprobs, np.float32), 0),
            versions=np.full(len(tokens), self.version, np.int32),
            finish=finish,
            engine=engine,
        )


def seed_of(key: np.ndarray, drawn: int, bits: int) -> int:
    """Returns the seed of a completion: a hash of its key data and of the tokens drawn before.

    A continued response gets another seed, since a server counts tokens from the start of its own
    completion and would draw with the same random numbers again.
    """
    words = np.asarray(key, np.uint32).tobytes() + np.uint32(drawn).tobytes()
    digest = hashlib.sha256(words).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - bits)


def checked(
    request: ServerRequest,
    engine: str,
    tokens: Any,
    logprobs: Any,
    reason: Any,
    *,
    versions: Sequence[Any] = (),
) -> Completion:
    """Returns the completion in a response, if it can be correct.

    Args:
      engine: the address of the server.
      tokens, logprobs: the token ids and their log-probabilities.
      reason: why the completion ended: stop, length or abort. `Finish.ABORT` is a fragment.
      versions: the labels of the weights that drew the tokens, as far as the server reports them.

    Raises:
      InvalidResponseError: anything is wrong.
    """
    if not isinstance(tokens, list) or not isinstance(logprobs, list):
        raise InvalidResponseError("tokens or log-probabilities are no list")
    if len(tokens) != len(logprobs):
        raise InvalidResponseError(f"{len(tokens)} tokens, but {len(logprobs)} log-probabilities")
    for token in tokens:
        if type(token) is not int or not 0 <= token < request.vocabulary:
            raise InvalidResponseError(f"{token!r} is no token id below {request.vocabulary}")
    for logprob in logprobs:
        value = number(logprob)
        if value is None or not -float("inf") < value <= LARGEST_LOGPROB:
            raise InvalidResponseError(f"{logprob!r} is no log-probability")
    if wrong := [x for x in versions if x != request.label]:
        raise InvalidResponseError(
            f"tokens of the weights {wrong[0]!r}, but the current ones are {request.label!r}"
        )
    return request.completion(engine, tokens, logprobs, finish_of(request, tokens, reason))


def finish_of(request: ServerRequest, tokens: Sequence[int], reason: Any) -> Finish:
    """Returns why a completion ended, if the reason fits the tokens."""
    if len(tokens) > request.max_tokens:
        raise InvalidResponseError(f"{len(tokens)} tokens, but max_tokens={request.max_tokens}")
    if any(token in request.end_ids for token in tokens[:-1]):
        raise InvalidResponseError("an end token before the end")
    if reason == "abort":
        return Finish.ABORT
    if not tokens:
        raise InvalidResponseError("no tokens")
    ended = tokens[-1] in request.end_ids
    if reason == "stop" and not ended:
        raise InvalidResponseError(f"it stopped at the token {tokens[-1]}, which is no end token")
    if reason == "length" and len(tokens) < request.max_tokens:
        raise InvalidResponseError(
            f"it ended for its length of {len(tokens)}, below {request.max_tokens}"
        )
    if reason not in ("stop", "length"):
        raise InvalidResponseError(f"it ended for the reason {reason!r}")
    return Finish.STOP if ended else Finish.LENGTH


def field(value: Any, *path: str | int) -> Any:
    """Returns the value at a path in nested mappings and lists.

    Raises:
      InvalidResponseError: there is no such place.
    """
    for step in path:
        try:
            value = value[step]
        except (TypeError, LookupError):
            raise InvalidResponseError(f"no {'.'.join(map(str, path))}") from None
    return value


def only_choice(value: Any) -> Any:
    """Returns the single completion of a response that has a list of `choices`."""
    choices = field(value, "choices")
    if not isinstance(choices, list) or len(choices) != 1:
        count = len(choices) if isinstance(choices, list) else type(choices).__name__
        raise InvalidResponseError(f"{count} completions, but 1 was requested")
    return choices[0]


def number(value: Any) -> float | None:
    """Returns a number of a response, or None if it is none."""
    if isinstance(value, float | int) and not isinstance(value, bool):
        return float(value)
    return None
