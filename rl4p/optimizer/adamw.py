"""AdamW."""

from dataclasses import dataclass

import jax
import optax

from rl4p.bounds import AboveZero, Natural, NonNegative, Positive, Share
from rl4p.optimizer.schedule import Schedule, learning_rate_at
from rl4p.types import Array, Params


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """AdamW (1711.05101) after a clip of the gradient's global norm.

    Weight decay touches matrices only: biases, norm scales and other vectors are left out.

    Attributes:
      learning_rate: the peak.
      schedule, warmup_steps, total_steps, final_fraction: see `optimizer/schedule.py`.
      max_grad_norm: the global norm that a larger gradient is scaled down to; 0 is off.
    """

    learning_rate: NonNegative = 5e-5
    schedule: Schedule = "constant"
    warmup_steps: Natural = 0
    total_steps: Positive = 1
    final_fraction: Share = 0.0
    b1: Share = 0.9
    b2: Share = 0.999
    epsilon: AboveZero = 1e-8
    weight_decay: NonNegative = 0.0
    max_grad_norm: NonNegative = 1.0

    def transform(self) -> optax.GradientTransformation:
        """The update at learning rate 1; the training step scales it by `learning_rate_at`."""
        clip = optax.clip_by_global_norm(self.max_grad_norm)
        adamw = optax.adamw(
            1.0, self.b1, self.b2, self.epsilon, weight_decay=self.weight_decay, mask=is_matrix
        )
        return optax.chain(clip, adamw) if self.max_grad_norm > 0 else adamw

    def learning_rate_at(self, step: Array | int) -> Array:
        return learning_rate_at(
            step,
            learning_rate=self.learning_rate,
            schedule=self.schedule,
            warmup_steps=self.warmup_steps,
            total_steps=self.total_steps,
            final_fraction=self.final_fraction,
        )


def is_matrix(params: Params) -> Params:
    """True on kernels and embeddings (stacked over layers or not), told by their names."""
    names = ("kernel", "embedding", "head", "lora_a", "lora_b")
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key in names, params)
