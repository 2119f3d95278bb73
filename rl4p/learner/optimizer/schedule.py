"""Learning-rate schedules over the steps of the loop."""

from typing import Literal

import jax.numpy as jnp

from rl4p.base.types import Array

Schedule = Literal["constant", "linear", "cosine"]


def learning_rate_at(
    step: Array | int,
    *,
    learning_rate: float,
    schedule: Schedule,
    warmup_steps: int,
    total_steps: int,
    final_fraction: float,
) -> Array:
    """Returns the learning rate of a step (counted from 0), float32.

    The warm-up is linear over `warmup_steps` and reaches `learning_rate` at its last step. Then the
    learning rate is constant, or falls to `final_fraction` of its peak at `total_steps`, along a
    line or half a cosine.
    """
    step = jnp.asarray(step, jnp.float32)
    warmup = jnp.minimum(1.0, (step + 1) / max(warmup_steps, 1))
    progress = jnp.clip((step - warmup_steps) / max(total_steps - warmup_steps, 1), 0.0, 1.0)
    remaining = {
        "constant": jnp.ones_like(progress),
        "linear": 1.0 - progress,
        "cosine": 0.5 * (1.0 + jnp.cos(jnp.pi * progress)),
    }[schedule]
    return learning_rate * warmup * (final_fraction + (1.0 - final_fraction) * remaining)
