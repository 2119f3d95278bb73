"""Sums in an order that depends on no other row: with them a sampler has the trainer's digits.

On a CPU, XLA chooses the order of a sum by the shape of the arrays, so that a decode step of few
rows rounds otherwise than a forward pass of many. In float32 log-probabilities then differ by about
1e-6, and in bfloat16, where such a difference changes a rounding, by about 0.03. What was measured
there, and is used here:

1. A row of a product has the same digits in all products with at least `LEAST` rows, and with a
   multiple of `LEAST` columns in a product for each row of the batch (attention).
2. A product adds up to `RUN` terms one after another. Terms of 0, such as masked keys, change
   nothing, wherever they are.
3. A reduction has another order for each shape. It is a product with ones instead.
4. An exponential has another formula in short loops. `exp` has one.

Nothing guarantees this to the next compiler: tests compare all digits, and so does
`rollout/logprob_gap_max` in every step.
"""

import jax
import jax.numpy as jnp

from rl4p.base.types import Array
from rl4p.model.decoder_config import DecoderConfig

# The first version of jax whose sampler was seen with other digits: by 1e-6 in float32, only in its
# loop over tokens. Prefill, single decode steps and scores of the same tokens were equal there.
OTHER_DIGITS = (0, 12)
LEAST = 64  # rows and columns
RUN = 512  # terms


def obstacle(c: DecoderConfig, lora_rank: int, devices: int, platform: str) -> str | None:
    """Returns why the sums of a policy cannot be exact, in words that follow a name, or None."""
    plain = all(kind.mixer == "attention" and kind.feed_forward == "gated" for kind in c.kinds)
    reasons = {
        f"needs a CPU, but these devices are {platform}": platform != "cpu",
        f"needs one device, not {devices}": devices > 1,
        "needs layers of attention and a feed-forward, without experts or states": not plain,
        "does not support this model's attention sinks": c.attention_sinks,
        "does not support this model's norm of values": c.normed_values,
        "does not support adapters (model.lora.rank)": lora_rank > 0,
        f"needs jax before {'.'.join(map(str, OTHER_DIGITS))}, whose compiler gives the sampler "
        f"other digits, and this is jax {jax.__version__}": jax.__version_info__ >= OTHER_DIGITS,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def filled(x: Array, axis: int, multiple: int) -> jax.Array:
    """Returns x with zeros behind an axis, up to a multiple of a size."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, -x.shape[axis] % multiple)
    return jnp.pad(x, widths)


def in_rows(x: Array) -> jax.Array:
    """Returns the last axis of x as rows [N, D], of which there are at least `LEAST`."""
    x_ND = jnp.reshape(x, (-1, x.shape[-1]))
    return x_ND if len(x_ND) >= LEAST else filled(x_ND, 0, LEAST)


def product(x: Array, kernel_DF: Array, sums: str | None = None) -> jax.Array:
    """Returns the product x W over the last axis of x, added up in the dtype `sums`."""
    y_NF = jnp.matmul(in_rows(x), kernel_DF, preferred_element_type=sums)
    shape = *x.shape[:-1], kernel_DF.shape[1]
    return y_NF[: x.size // x.shape[-1]].reshape(shape)


def total(x: Array) -> jax.Array:
    """Returns the sum over the last axis, which keeps one element."""
    return product(x, jnp.ones((x.shape[-1], LEAST), x.dtype))[..., :1]


@jax.custom_jvp
def exp(x: Array) -> jax.Array:
    """Returns e^x of float32.

        n = round(x / ln 2),  r = x - n ln 2,  e^x = 2^n e^r

    e^r is the polynomial of Cephes's expf, with an error of 1e-7; e^x is 0 below -87.
    """
    n = jnp.round(x * 1.44269504)
    # Each sum has one product, and the compiler always rounds the two together. The first part of
    # ln 2 has few digits, so that n times it is exact.
    r = (x - n * 0.693359375) - n * -2.12194440e-4
    p = jnp.full_like(r, 1.9875691500e-4)
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5, 1, 1):
        p = p * r + c
    power = jax.lax.bitcast_convert_type((n.astype(jnp.int32) + 127) << 23, jnp.float32)
    return jnp.where(x < -87, 0.0, p * power)


@exp.defjvp
def exp_derivative(x: tuple[Array], dx: tuple[Array]) -> tuple[jax.Array, jax.Array]:
    y = exp(*x)
    return y, y * dx[0]


def token_logprobs(logits_V: Array, token: Array) -> jax.Array:
    """Returns log softmax(logits)[token], float32 [...]."""
    logits_NV, token_N1 = in_rows(logits_V), in_rows(token[..., None])
    largest_N1 = jnp.max(logits_NV, axis=-1, keepdims=True)
    chosen_N1 = jnp.take_along_axis(logits_NV, token_N1, axis=-1) - largest_N1
    logprobs_N1 = chosen_N1 - jnp.log(total(exp(logits_NV - largest_N1)))
    return logprobs_N1[: token.size, 0].reshape(token.shape)


def aligned(
    k_BKhS: Array, v_BKSh: Array, mask_BTS: Array, segment_ids_BS: Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns keys, values and mask as float32, padded to sizes that `attended` takes.

    More than `RUN` keys are added up in parts, and each row then begins with its first token.
    """
    arrays = k_BKhS.astype(jnp.float32), v_BKSh.astype(jnp.float32), mask_BTS
    size = LEAST
    if k_BKhS.shape[3] > RUN:
        size, first_B = RUN, jnp.argmax(jnp.asarray(segment_ids_BS) != 0, axis=1)
        # The mask [B, T, S] is rolled for all queries of a row.
        arrays = tuple(
            jax.vmap(lambda x, first, axis=axis: jnp.roll(x, -first, axis=axis))(x, first_B)
            for x, axis in zip(arrays, (2, 1, 1), strict=True)
        )
    k_BKhS, v_BKSh, mask_BTS = (
        filled(x, axis, size) for x, axis in zip(arrays, (3, 2, 2), strict=True)
    )
    return k_BKhS, filled(v_BKSh, 3, LEAST), mask_BTS


def attended(scores_BKMS: Array, v_BKSh: Array) -> jax.Array:
    """Returns softmax(scores) v, of arrays that `aligned` has padded."""
    weights_BKMS = exp(scores_BKMS - jnp.max(scores_BKMS, axis=-1, keepdims=True))
    out_BKMh, total_BKM1 = 0.0, 0.0
    for start in range(0, v_BKSh.shape[2], RUN):
        w_BKMS, v_BKPh = weights_BKMS[..., start : start + RUN], v_BKSh[:, :, start : start + RUN]
        out_BKMh += jnp.einsum("BKMS,BKSh->BKMh", w_BKMS, v_BKPh)
        total_BKM1 += total(w_BKMS)
    return jnp.asarray(out_BKMh / total_BKM1)
