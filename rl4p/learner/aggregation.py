"""The aggregation of per-token losses, as weights that are computed once per optimizer update.

The weights come from the whole minibatch, so the loss is a plain weighted sum. The loss does
not depend on the number of microbatches, on padding, or on the width of the batch.
"""

import jax.numpy as jnp

from rl4p.base.types import Array
from rl4p.learner.update_options import Aggregation


def aggregation_weights(mask_BT: Array, aggregation: Aggregation, length: int | None) -> Array:
    """Returns weights w_BT, 0 outside the mask, such that the loss is sum(w_BT * loss_BT).

    l_b is the number of loss tokens of sequence b, and N the number of sequences that have any:

        token_mean                 1 / sum(l)          every token counts the same
        sequence_mean_token_mean   1 / (N l_b)         every sequence counts the same (GRPO's paper)
        sequence_mean_token_sum    1 / N
        constant                   1 / (N length)      Dr. GRPO (2503.20783)
    """
    mask = mask_BT.astype(jnp.float32)
    tokens_B1 = jnp.sum(mask, axis=1, keepdims=True)
    sequences = jnp.maximum(jnp.sum(tokens_B1 > 0, dtype=jnp.float32), 1)
    match aggregation:
        case "token_mean":
            return mask / jnp.maximum(jnp.sum(mask), 1)
        case "sequence_mean_token_mean":
            return mask / jnp.maximum(tokens_B1, 1) / sequences
        case "sequence_mean_token_sum":
            return mask / sequences
        case "constant":
            assert length is not None  # `UpdateOptions` guarantees it
            return mask / sequences / length
