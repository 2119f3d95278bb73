"""Memory of a divergence over the whole vocabulary and of its gradient, beside unchunked logits.

    python -m experiments.benchmarks.distillation_memory

Compiles `token_scores` with a teacher, forward and backward, for one CPU device, and prints the
temporaries that the compiler allots. Tokens and width are the same for all vocabularies, and narrow
models leave the logits as nearly all of the memory. A chunk has at most 2^24 logits of both models.
On 2026-11-30, in MiB of 32,000 and of 152,064 tokens: forward 131 and 139 in chunks, 203 and 965 at
once; Jensen-Shannon 256 and 251; reverse 193 and 190.
"""

from typing import Any

import jax
import jax.numpy as jnp

from rl4p.base.types import Sampling, Trajectories
from rl4p.learner import logprobs
from rl4p.learner.logprobs import TeacherRows, columns_per_chunk, token_scores
from rl4p.model.decoder import Decoder, DecoderConfig
from rl4p.update.gkd import GKD

B, T, D = 4, 105, 16
VOCABULARIES = (32_000, 64_000, 152_064)


def program(V: int, beta: float, T: int = T) -> tuple[Any, tuple]:
    """Returns the compiled gradient of both heads' divergence, and the shapes of its arguments."""
    config = DecoderConfig(
        vocabulary=V,
        width=D,
        layers=1,
        heads=2,
        num_kv_heads=2,
        head_width=8,
        feed_forward_width=16,
        max_positions=T,
    )
    decoder = Decoder(config=config)

    def shape(*sizes: int, dtype: type = jnp.float32) -> Any:
        return jax.ShapeDtypeStruct(sizes, dtype)

    rows = Trajectories(
        tokens_BT=shape(B, T, dtype=jnp.int32),
        response_mask_BT=shape(B, T, dtype=jnp.bool_),
        positions_BT=shape(B, T, dtype=jnp.int32),
        segment_ids_BT=shape(B, T, dtype=jnp.int32),
        behaviour_logprobs_BT=shape(B, T),
        policy_version_BT=shape(B, T, dtype=jnp.int32),
        group_ids_B=shape(B, dtype=jnp.int32),
        finish_B=shape(B, dtype=jnp.int8),
    )

    def loss(trained: tuple, own: jax.Array, hidden: jax.Array, rows: Trajectories) -> jax.Array:
        head_VD, hidden_BTD = trained
        head = decoder.head({"embedding": own})
        beside = TeacherRows(decoder, head, hidden, GKD(beta=beta).divergence)
        params = {"embedding": head_VD}
        arguments = (decoder, params, hidden_BTD, rows, Sampling(), None, beside)
        return jnp.sum(jnp.asarray(token_scores(*arguments).compared_BT))

    arrays = shape(V, D), shape(B, T, D)
    arguments = arrays, *arrays, rows
    return jax.jit(jax.grad(loss)).lower(*arguments).compile(), arguments


def temporaries(V: int, beta: float) -> float:
    """Returns the MiB of temporaries for a vocabulary."""
    return program(V, beta)[0].memory_analysis().temp_size_in_bytes / 2**20


def main() -> None:
    print("| vocabulary | columns at a time | beta | in chunks, MiB | at once, MiB |")
    print("|---|---|---|---|---|")
    for beta in (0.0, 0.5, 1.0):
        for V in VOCABULARIES:
            width = columns_per_chunk(B, T - 1, 2 * V, "cpu")
            ours, logprobs.MOST_CHUNKS = temporaries(V, beta), 1
            whole, logprobs.MOST_CHUNKS = temporaries(V, beta), 8
            print(f"| {V} | {width} of {T - 1} | {beta} | {ours:.0f} | {whole:.0f} |")


if __name__ == "__main__":
    main()
