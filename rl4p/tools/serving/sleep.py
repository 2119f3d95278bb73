"""The sleep of the server, during which its weights and its cache take no memory of the devices."""

from typing import Any

import jax
import jax.numpy as jnp

from rl4p.base.types import Params
from rl4p.distributed.placement import like_of
from rl4p.engine.serving.scheduler import Scheduler

GIVEN_BACK = "The weights were given back (a sleep of level 2): load weights first."


class Sleep:
    """Removes the weights of a paused scheduler, and restores them.

    Attributes:
      shapes: the shapes of the weights while it sleeps; None while it does not.
      weights: what the host keeps of them; None if they are dropped.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.shapes: Any = None
        self.weights: Params | None = None

    def begin(self, *, keep: bool) -> None:
        """Frees the memory of the weights and of the cache.

        Args:
          keep: whether the host keeps the weights.
        """

        def release() -> None:
            scheduler = self.scheduler
            scheduler.batch.clear()
            self.shapes = like_of(scheduler.params)
            self.weights = jax.device_get(scheduler.params) if keep else None
            scheduler.params = {}

        self.scheduler.order(release).result()

    def end(self) -> None:
        """Takes the memory again. Dropped weights must be loaded before anything is decoded."""

        def take() -> None:
            scheduler, shardings = self.scheduler, jax.tree.map(lambda x: x.sharding, self.shapes)
            weights = self.weights
            if weights is None:
                weights = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self.shapes)
                scheduler.broken = GIVEN_BACK
            scheduler.params = jax.device_put(weights, shardings)
            self.shapes = self.weights = None

        self.scheduler.order(take).result()
