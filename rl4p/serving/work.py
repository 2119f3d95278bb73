"""What the server asks of its engine, and what it gets back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rl4p.errors import InputError
from rl4p.types import Finish, Sampling


@dataclass(frozen=True, kw_only=True)
class Work:
    """A context that is continued once for each seed.

    Attributes:
      tokens: the token ids of the context, at least one.
      seeds: one for each completion, from 0 to 2**64 - 1. The data of its key are the upper and
        the lower 32 bits of the seed, as in `jax.random.key(seed)`, which JAX cuts to 32 bits.
        Token t is drawn with fold_in(key, t). A completion therefore does not depend on others.
      max_tokens: the most tokens of a completion, the end token included.
      sampling: the distribution that tokens are drawn from.
      end_ids: the tokens that end a completion; the end token is delivered as its last token.
      min_tokens: a completion cannot end with an end token before it has this many tokens.
      alternatives: how many of the most probable tokens are reported with each token.
    """

    tokens: Sequence[int]
    seeds: Sequence[int]
    max_tokens: int
    sampling: Sampling
    end_ids: tuple[int, ...]
    min_tokens: int = 0
    alternatives: int = 0


class Part(NamedTuple):
    """New tokens of one completion.

    Attributes:
      index: the number of the completion's seed.
      tokens, logprobs: the new tokens and their log-probabilities.
      version: the weight version that drew them.
      alternatives: for each token, the most probable tokens with their log-probabilities, the most
        probable first; empty if none were asked for.
      finish: the reason why the completion ended; None if it goes on.
    """

    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    tokens: list[int]
    logprobs: list[float]
    version: str
    alternatives: list[list[tuple[int, float]]]
    finish: Finish | None


def check_work(work: Work, longest: int) -> None:
    """Checks that work asks for something, and that the model has positions for it.

    Raises:
      InputError: it does not, or the model has only the `longest` positions.
    """
    if not work.tokens or not work.seeds or work.max_tokens < 1:
        raise InputError("A request needs at least one token, one seed and max_tokens=1.")
    if len(work.tokens) + work.max_tokens > longest:
        raise InputError(
            f"A request of {len(work.tokens)} tokens with max_tokens={work.max_tokens} is longer "
            f"than the {longest} positions of the model."
        )


def check_scored(tokens: Sequence[int], longest: int) -> None:
    """Checks the number of tokens to score.

    Raises:
      InputError: there are none, or more than the `longest` positions of the model.
    """
    if not 1 <= len(tokens) <= longest:
        raise InputError(
            f"{len(tokens)} tokens cannot be scored: the model takes from 1 to {longest}."
        )
