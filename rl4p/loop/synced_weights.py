"""The parameters that a step samples with: the newest, of the last sync, or with a lag."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from rl4p.base.types import Params, TrainState
from rl4p.distributed.processes import to_host
from rl4p.protocols.phases import Rollout
from rl4p.protocols.traits import RolloutTraits

Weights = tuple[int, Any]  # a version with its parameters, or with their leaves on the host


class SyncedWeights:
    """The weights of a sampler, which are synced every n steps (`rollout.sync_every`).

    Step s, counted from 0, samples with the parameters at the start of step n floor(s / n). With
    n = 1 they are the parameters of the state. Otherwise they are a copy, because updates donate
    the parameters of their states.
    """

    def __init__(self, rollout: Rollout) -> None:
        self.every = RolloutTraits.read(rollout).sync_every
        self.step = -1
        self.kept: Weights | None = None

    def __call__(self, state: TrainState) -> tuple[int, Params]:
        """Returns the weight version that samples in the step of a state, and its parameters."""
        self.step = int(state.step)
        if self.every == 1:
            return self.step, state.params
        if self.kept is None or self.step % self.every == 0:
            self.kept = self.step, jax.tree.map(jnp.copy, state.params)
        self.kept = on_devices(self.kept, state.params)
        return self.kept

    def state(self) -> dict[str, Any]:
        """Returns the kept parameters, unless the next step replaces them.

        A checkpoint of a step after which weights are synced therefore holds the weights once.
        """
        if self.kept is None or (self.step + 1) % self.every == 0:
            return {}
        return saved_weights([self.kept])

    def restore(self, state: dict[str, Any]) -> None:
        self.kept = next(iter(restored_weights(state)), None)


class LaggedWeights:
    """The weights of `lag` steps before the step of a state, or those of the first step."""

    def __init__(self, lag: int) -> None:
        self.lag = lag
        self.earlier: list[Weights] = []

    def __call__(self, state: TrainState) -> tuple[int, Params]:
        # The update donates the parameters of the state.
        self.earlier.append((int(state.step), jax.tree.map(jnp.copy, state.params)))
        del self.earlier[: -self.lag - 1]
        return on_devices(self.earlier[0], state.params)

    def state(self) -> dict[str, Any]:
        """Returns the parameters that later steps will sample with."""
        return saved_weights(self.earlier[-self.lag :] if self.lag else [])

    def restore(self, state: dict[str, Any]) -> None:
        self.earlier = restored_weights(state)


def saved_weights(weights: Sequence[Weights]) -> dict[str, Any]:
    """Returns weights as a part of a checkpoint."""
    return {
        "versions": [version for version, _ in weights],
        "params": [to_host(jax.tree.leaves(params)) for _, params in weights],
    }


def restored_weights(state: dict[str, Any]) -> list[Weights]:
    """Returns the weights of `saved_weights`, whose leaves are on the host."""
    return list(zip(state.get("versions", ()), state.get("params", ()), strict=True))


def on_devices(weights: Weights, like: Params) -> tuple[int, Params]:
    """Returns weights whose restored leaves are sharded as the parameters `like`."""
    version, params = weights
    if isinstance(params, list):
        leaves, structure = jax.tree.flatten(like)
        shardings = [leaf.sharding for leaf in leaves]
        params = structure.unflatten(jax.device_put(params, shardings))
    return version, params
