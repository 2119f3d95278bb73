"""A sequence: a context, and the tokens that an engine adds to it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.types import Sampling
from rl4p.model.sampling import PROMPT, RESPONSE


@dataclass(eq=False, kw_only=True)
class TokenSequence:
    """A sequence that has a slot, waits for one, or has ended.

    Attributes:
      context: the token ids that it begins with, at least one.
      key: uint32 [...], the data of its random key. Token t is drawn with fold_in(key, t).
      max_tokens: the most tokens that are added, the end token included.
      end_ids: the tokens that end it; the end token is its last token.
      drawn: how many tokens its key has drawn; above 0 from the start if the context ends with
        tokens that this key drew.
      sampling: its own sampling distribution; None takes the one of all sequences.
      min_tokens: it cannot end with an end token before it has this many new tokens.
      alternatives: how many of the most probable tokens are reported with each token.
      keep: whether its cache is kept when it ends, in `kept`: one row.
      owner, index: whom its tokens are for, and its number there.
      tokens: the context and the new tokens.
    """

    context: Sequence[int]
    key: np.ndarray
    max_tokens: int
    end_ids: tuple[int, ...]
    drawn: int = 0
    sampling: Sampling | None = None
    min_tokens: int = 0
    alternatives: int = 0
    keep: bool = False
    owner: Any = None
    index: int = 0
    kept: Any = None
    tokens: list[int] = field(init=False)
    new: list[int] = field(init=False)  # also those that are not yet in `tokens`
    begun: int = field(init=False)  # `drawn` at the start

    def __post_init__(self) -> None:
        self.tokens, self.new, self.begun = list(self.context), [], self.drawn

    @property
    def length(self) -> int:
        """The number of tokens, also while the newest are not yet in `tokens`."""
        return len(self.context) + self.drawn - self.begun

    @property
    def penalizes(self) -> bool:
        """Whether its distribution depends on which tokens have occurred."""
        own = self.sampling
        return own is not None and (own.repetition_penalty != 1 or own.presence_penalty != 0)

    def seen(self, V: int) -> np.ndarray:
        """Returns which tokens of the vocabulary have occurred, uint8 [V] (`penalized`)."""
        seen_V, first = np.zeros(V, np.uint8), len(self.context) - self.begun
        seen_V[list(self.context[:first])] = PROMPT
        seen_V[[*self.context[first:], *self.new]] = RESPONSE
        return seen_V

    @property
    def needs_extras(self) -> bool:
        """Whether `decode` needs its `extras` for the next tokens."""
        return self.alternatives > 0 or self.drawn < self.begun + self.min_tokens


def check_request(context: Sequence[int], completions: int, max_tokens: int, longest: int) -> None:
    """Checks that there is something to draw, and that the model has positions for it.

    Args:
      completions: the number of completions of the context.
      longest: the number of positions of the model.

    Raises:
      InputError: there is nothing to draw, or the model has too few positions.
    """
    if not context or not completions or max_tokens < 1:
        raise InputError("A request needs at least one token, one random key and max_tokens=1.")
    if len(context) + max_tokens > longest:
        raise InputError(
            f"A request of {len(context)} tokens with max_tokens={max_tokens} is longer "
            f"than the {longest} positions of the model."
        )
