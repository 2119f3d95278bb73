"""The sampling distributions of n slots: one that all share, or one for each slot."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.base.types import Array, Sampling
from rl4p.model.sampling import Draws, draw, draw_each, log_share


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class SharedDistribution:
    """The distribution of all sequences of a rollout.

    It is part of the compiled program, which sorts the vocabulary only if `sampling` needs it.

    Attributes:
      greedy: bool or array, whether to choose the most probable token at every step.
      temperature: number or array, in place of `sampling.temperature`; None keeps that one.
    """

    sampling: Sampling = field(metadata={"static": True})
    greedy: Any
    temperature: Any = None

    def draw(
        self, logits_nV: Array, active_n: Array, keys_n: Array, t_n: Array, alternatives: int
    ) -> Draws:
        """Draws token t_n of each slot, in free slots too; it reports no alternatives."""
        del active_n
        assert alternatives == 0
        options = keys_n, t_n, self.greedy, self.temperature
        token_n, logprob_n = draw(logits_nV, self.sampling, *options)
        none_n0 = jnp.zeros((len(token_n), 0), jnp.int32)
        return Draws(token_n, logprob_n, none_n0, none_n0.astype(jnp.float32))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class OwnDistributions:
    """A distribution for each slot: int32 [n] for top-k, float32 [n] otherwise.

    Attributes:
      log_min_p_n: `log_share` of each slot's min-p.
      repetition_n, presence_n: the penalties (`Sampling`).
    """

    temperature_n: Array
    top_k_n: Array
    top_p_n: Array
    log_min_p_n: Array
    repetition_n: Array
    presence_n: Array

    @classmethod
    def of(cls, rows: Sequence[Sampling]) -> "OwnDistributions":
        """Returns the distributions of rows, on the host."""
        kinds = np.float32, np.int32, *(np.float32,) * 4
        columns = np.array([numbers(x) for x in rows]).reshape(-1, len(kinds)).T
        return cls(*(x.astype(kind) for x, kind in zip(columns, kinds, strict=True)))

    def draw(
        self, logits_nV: Array, active_n: Array, keys_n: Array, t_n: Array, alternatives: int
    ) -> Draws:
        """Draws token t_n of each slot; a free slot never needs the vocabulary sorted."""
        return draw_each(
            logits_nV,
            jnp.where(active_n, self.temperature_n, 0.0),
            jnp.where(active_n, self.top_k_n, 0),
            jnp.where(active_n, self.top_p_n, 1.0),
            jnp.where(active_n, self.log_min_p_n, -jnp.inf),
            keys_n,
            t_n,
            alternatives,
        )


def numbers(sampling: Sampling) -> tuple[float, ...]:
    """Returns the values of a slot, in the order of the attributes of `OwnDistributions`."""
    cuts = sampling.temperature, sampling.top_k, sampling.top_p, float(log_share(sampling.min_p))
    return (*cuts, sampling.repetition_penalty, sampling.presence_penalty)


Distribution = SharedDistribution | OwnDistributions
