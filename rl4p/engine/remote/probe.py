"""A probe that shows whether a server decodes with the weights that it has loaded."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rl4p.base.types import Params
from rl4p.model.policy import Policy

SequenceScore = Callable[[Policy, Sequence[int], Params], np.ndarray]

TEXT = "If 38 + 47 = 85, is 6.02 one of 19 (or so) answers that people gave in 1969? "
LENGTH = 32
STALE = 0.25  # share of the change to new weights, up to which they did not arrive
ERRORS = 5  # standard errors that the share must be below 1, since engines round differently


class Probe:
    """A fixed sequence whose log-probabilities depend on all weights.

    Args:
      score: returns float32 [n - 1], log p(token t | tokens before t) of tokens 1 to n - 1 of a
        sequence, by the trainer's forward pass, at temperature 1 over the whole vocabulary.
      limit: the largest error of a server's log-probability of one token; None for any.

    Attributes:
      tokens: the token ids, 32 or as many as the model has positions.
    """

    def __init__(self, policy: Policy, score: SequenceScore, *, limit: float | None = None) -> None:
        tokenizer: Any = policy.tokenizer
        ids: Any = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
        length = min(LENGTH, policy.decoder.config.max_positions)
        ids = ids * -(-length // max(1, len(ids))) or list(range(length))
        self.policy, self.score, self.limit = policy, score, limit
        self.tokens: list[int] = ids[:length]

    def expected(self, params: Params) -> np.ndarray:
        """Returns what a server with these parameters should report, by `score`."""
        return self.score(self.policy, self.tokens, params)

    def problem(
        self,
        logprobs: Sequence[float | None] | np.ndarray,
        expected: np.ndarray,
        previous: np.ndarray | None,
    ) -> str | None:
        """Returns what is wrong with a server's log-probabilities, or None.

        Args:
          logprobs: the server's log-probabilities of tokens 1 to n - 1.
          expected, previous: the same under the weights that it has loaded, and under the weights
            before.
        """
        values = np.array([np.nan if x is None else x for x in logprobs], np.float64)
        if values.shape != expected.shape:
            return (
                f"it returned {len(values)} log-probabilities of the probe's tokens, not "
                f"{len(expected)}"
            )
        if not np.isfinite(values).all():
            worst = int(np.argmin(np.isfinite(values)))
            return f"the log-probability of the probe's token {worst + 1} is {values[worst]}"
        if previous is not None and (share := change_made(values, previous, expected)) is not None:
            change = float(np.mean(np.abs(expected - previous)))
            return (
                "it still decodes with the weights before: the log-probabilities of the probe made "
                f"{max(share, 0):.0%} of the change to the new weights, which is {change:.3g} for "
                "each token"
            )
        gaps = np.abs(values - expected)
        worst = int(np.argmax(gaps))
        if self.limit is not None and gaps[worst] > self.limit:
            return (
                f"the log-probability of the probe's token {worst + 1} is {values[worst]:.6g}, "
                f"but {expected[worst]:.6g} by the new weights: the gap {gaps[worst]:.3g} is above "
                f"the limit {self.limit:g}"
            )
        return None


def change_made(logprobs: np.ndarray, previous: np.ndarray, expected: np.ndarray) -> float | None:
    """Returns the share of the change to new weights that a stale server made; None if not stale.

    The share is the slope of logprobs - previous on expected - previous: 0 with the old weights, 1
    with the new ones. In bfloat16 the change of a small step may be less than the rounding of one
    token, but the slope averages over tokens. Nothing is concluded from a change that is too small.
    """
    change = np.float64(expected) - previous
    square = float(np.sum(change**2))
    if square == 0:
        return None
    share = float(np.sum((logprobs - previous) * change)) / square
    rest = logprobs - previous - share * change
    error = float(np.sqrt(np.mean(rest**2) / square))
    return share if share <= STALE and share + ERRORS * error < 1 else None
