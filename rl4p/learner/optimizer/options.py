"""The options that every optimizer takes, and the transform that they define."""

from dataclasses import dataclass, fields
from typing import Literal

import optax

from rl4p.base.types import Array
from rl4p.configuration.bounds import Natural, NonNegative, Positive, Share
from rl4p.learner.optimizer.blocks import is_matrix
from rl4p.learner.optimizer.schedule import Schedule, learning_rate_at

# Optax also rounds the decay of a moment to this dtype: in bfloat16 a decay of 0.9 acts as 0.898,
# and 0.99 as 0.988.
MomentDtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class OptimizerOptions:
    """Options of an optimizer: the learning rate, weight decay and gradient clipping.

    Attributes:
      learning_rate: peak learning rate.
      schedule, warmup_steps, total_steps, final_fraction: see `optimizer/schedule.py`.
      weight_decay: decoupled weight decay (1711.05101), for matrices only (`blocks.is_matrix`).
      max_grad_norm: global norm that larger gradients are scaled down to; 0 disables clipping.
      offload: whether the state of the optimizer stays in the memory of the host. It is on the
        devices only while it changes, after the memory of the activations is freed.
    """

    learning_rate: NonNegative
    schedule: Schedule = "constant"
    warmup_steps: Natural = 0
    total_steps: Positive = 1
    final_fraction: Share = 0.0
    weight_decay: NonNegative = 0.0
    max_grad_norm: NonNegative = 1.0
    offload: bool = False

    def __post_init__(self) -> None:
        if self.schedule == "constant" and self.final_fraction:
            raise ValueError(
                f"final_fraction={self.final_fraction} has no effect with schedule=constant: "
                "choose schedule=linear or schedule=cosine, or leave it out."
            )

    def refuse_without_momentum(self, *options: str) -> None:
        """Refuses options that differ from their defaults although there is no momentum.

        Raises:
          ValueError: an option would have no effect.
        """
        for each in fields(self):
            if each.name in options and (value := getattr(self, each.name)) != each.default:
                raise ValueError(
                    f"{each.name}={str(value).lower()} has no effect with momentum=0: set "
                    "momentum, or leave it out."
                )

    def descent(self, direction: optax.GradientTransformation) -> optax.GradientTransformation:
        """Returns the transform -(direction + weight_decay x parameter), with clipped gradients.

        This is the update at learning rate 1; the training step scales it by `learning_rate_at`.
        """
        decay = optax.add_decayed_weights(self.weight_decay, mask=is_matrix)
        update = optax.chain(direction, decay, optax.scale(-1.0))
        if self.max_grad_norm == 0:
            return update
        return optax.chain(optax.clip_by_global_norm(self.max_grad_norm), update)

    def learning_rate_at(self, step: Array | int) -> Array:
        return learning_rate_at(
            step,
            learning_rate=self.learning_rate,
            schedule=self.schedule,
            warmup_steps=self.warmup_steps,
            total_steps=self.total_steps,
            final_fraction=self.final_fraction,
        )
