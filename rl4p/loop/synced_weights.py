"""The parameters that a step samples with: the newest, of the last sync, or with a lag."""

from typing import Any

import jax
import jax.numpy as jnp

from rl4p.base.types import Params, TrainState
from rl4p.distributed.processes import to_host
from rl4p.protocols.phases import Rollout
from rl4p.protocols.traits import RolloutTraits

Weights = tuple[int, Any]  # a version with its parameters, or with their leaves on the host


class SyncedWeights:
    """The weights of a sampler, which are synced every n steps (`rollout.sync_every`), or lag.

    Step s, counted from 0, samples with the parameters at the start of step n floor(s / n), or of
    step max(0, s - lag). With n = 1 they are the parameters of the state. Otherwise they are a
    copy, because updates donate the parameters of their states.
    """

    def __init__(self, rollout: Rollout, lag: int | None = None) -> None:
        self.every, self.lag = RolloutTraits.read(rollout).sync_every, lag
        self.step = -1
        self.kept: list[Weights] = []  # those of the last sync, or of the last lag + 1 steps

    def __call__(self, state: TrainState) -> tuple[int, Params]:
        """Returns the weight version that samples in the step of a state, and its parameters."""
        self.step = int(state.step)
        if self.lag is None and self.every == 1:
            return self.step, state.params
        if self.lag is not None or not self.kept or self.step % self.every == 0:
            self.kept.append((self.step, jax.tree.map(jnp.copy, state.params)))
            del self.kept[: -(self.lag or 0) - 1]
        version, params = self.kept[0]
        if isinstance(params, list):  # restored leaves get the shardings of the parameters
            leaves, structure = jax.tree.flatten(state.params)
            shardings = [leaf.sharding for leaf in leaves]
            params = structure.unflatten(jax.device_put(params, shardings))
            self.kept[0] = version, params
        return version, params

    def state(self) -> dict[str, Any]:
        """Returns the parameters that later steps sample with, as a part of a checkpoint.

        Those of a sync are left out if the next step replaces them, so that a checkpoint of a step
        after which weights are synced holds the weights once.
        """
        kept = self.kept
        if self.lag is not None:
            kept = kept[-self.lag :] if self.lag else []
        elif not kept or (self.step + 1) % self.every == 0:
            return {}
        return {
            "versions": [version for version, _ in kept],
            "params": [to_host(jax.tree.leaves(params)) for _, params in kept],
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.kept = list(zip(state.get("versions", ()), state.get("params", ()), strict=True))
