"""The options, the engine and the rollout that all in-process samplers share."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.configuration.bounds import AboveZero, Natural, NonNegative, Positive, TopShare
from rl4p.distributed.processes import to_host
from rl4p.model.policy import Policy
from rl4p.protocols.engine import Request
from rl4p.protocols.traits import RolloutTraits
from rl4p.rollout.annealing.linear import Linear
from rl4p.rollout.answers import answers
from rl4p.rollout.engine.in_process import InProcess
from rl4p.types import Array, Episode, Params, Prompt, Sampling, Trajectories


@dataclass(frozen=True, kw_only=True)
class Sampler(ABC):
    """A rollout that answers each prompt `group_size` times with the engine that `open` returns.

    Attributes:
      max_response_tokens: the longest response in tokens, the end token included.
      temperature, top_k, top_p: the sampling distribution (`types.Sampling`).
      annealing: the change of the temperature over the steps of a run; None for none. Evaluations
        keep `temperature`.
      sync_every: n, the steps between two changes of the weights that sample. With n > 1, steps in
        between sample with the weights of the last change, and their tokens are up to n - 1 steps
        old. Evaluations always have the newest weights.
      max_logprob_gap: the run ends if `rollout/logprob_gap_mean` of a step is larger; None never
        ends it.
    """

    max_response_tokens: Positive
    temperature: NonNegative = 1.0
    annealing: Linear | None = None
    top_k: Natural = 0
    top_p: TopShare = 1.0
    sync_every: Positive = 1
    max_logprob_gap: AboveZero | None = None

    def __post_init__(self) -> None:
        if self.annealing is not None and self.temperature == 0:
            raise ValueError("annealing needs a temperature above 0 to begin with.")

    @property
    def sampling(self) -> Sampling:
        return Sampling(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)

    def temperature_at(self, step: int) -> float | None:
        """Returns the temperature of a step if it changes over the run, otherwise None."""
        return None if self.annealing is None else self.annealing(self.temperature, step)

    @abstractmethod
    def open(self, policy: Policy) -> InProcess:
        """Returns the engine; `publish` gives it its first weights."""

    def __call__(
        self,
        policy: Policy,
        params: Params,
        prompts: Sequence[Prompt],
        *,
        group_size: int,
        key: Array,
        version: int,
        greedy: bool = False,
    ) -> tuple[Trajectories, Sequence[Episode]]:
        engine, limit = self.open(policy), self.max_response_tokens
        engine.publish(params, version)
        keys_P = np.split(to_host(sequence_keys(key, len(prompts) * group_size)), len(prompts))
        requests = [
            Request(tokens=prompt.tokens, keys_N=keys_N, max_tokens=limit)
            for prompt, keys_N in zip(prompts, keys_P, strict=True)
        ]
        return answers(policy, prompts, engine.complete(requests, greedy=greedy), limit)


def without_annealing(rollout: Any) -> Any:
    """Returns the rollout with its first temperature in all steps."""
    if RolloutTraits.read(rollout).annealing is None:
        return rollout
    return replace(rollout, annealing=None)


@partial(jax.jit, static_argnames="B")
def sequence_keys(key: Array, B: int) -> Array:
    """Returns the data of B keys: the key of each sequence is folded from its number."""
    return jax.random.key_data(jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(B)))
