"""The gated delta rule (2412.06464): a memory of each head, read and corrected by every token.

    S_t = e^(g_t) S_(t-1) + k_t u_t^T        u_t = b_t (v_t - e^(g_t) S_(t-1)^T k_t)
    y_t = S_t^T q_t

S [k, v] maps keys to values. The decay e^(g_t) and the strength b_t are numbers of a head and a
token. K heads of queries and keys are each shared by G neighbouring heads of values, H = K x G.

Full sequences are cut into chunks of C tokens, and within a chunk everything is a product of
matrices (2406.06484). With a_i the sum of g up to token i, and D_ij = e^(a_i - a_j) for j <= i:

    (I + L) u = b v - b e^a (k S)        L_ij = b_i (k_i k_j) D_ij, j < i
    y = e^a (q S) + ((q k^T) D) u        S' = e^(a_C) S + (e^(a_C - a) k)^T u

The traps: The decay of many tokens underflows, so it is only used as a difference of sums, never
as a quotient; and these sums need more digits than float32 has (`running_sums`). (I + L)^-1 is
computed block by block: a series of powers of L has the same value, but its terms grow and cancel.
Sequences of a packed row lie in one chunk, so D is 0 between them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from rl4p.base.types import Array
from rl4p.model.decoder_config import DeltaConfig
from rl4p.model.mixers.convolution import causal_convolution, fresh_windows, sequence_numbers
from rl4p.model.mixers.decays import between, running_sums
from rl4p.model.mixers.mamba import fresh_steps
from rl4p.model.products import PRODUCT

CHUNK = 64  # tokens, a power of two
EPSILON = 1e-6  # of the norms of queries and keys
HIGHEST = jax.lax.Precision.HIGHEST


class DeltaState(NamedTuple):
    """What decoding continues from: each head's memory, and the last inputs of convolutions."""

    memory_BHkv: Array
    queries_BCk: Array
    keys_BCk: Array
    values_BCk: Array

    slot_axes = (None, None, None, None)
    divided = True


class GatedDelta(nn.Module):
    """The mixer of gated delta networks (2412.06464).

        g = -exp(A) softplus(x W_a + c);  b = sigmoid(x W_b)
        out = norm(y) silu(x W_g) W_o

    Queries, keys and values are silu(convolution(x W)). The norm is of each head.

    Attributes:
      dense: makes a projection: `dense(features, use_bias=...)`.
    """

    config: DeltaConfig
    width: int
    norm_epsilon: float
    dtype: Any
    dense: Callable[..., nn.Module]

    def setup(self) -> None:
        c = self.config
        keys, values = c.key_heads * c.key_width, c.value_heads * c.value_width
        self.query, self.key = self.dense(keys), self.dense(keys)
        self.value, self.gate = self.dense(values), self.dense(values)
        self.strength, self.step = self.dense(c.value_heads), self.dense(c.value_heads)
        self.output = self.dense(self.width)
        self.query_convolution = self.param("query_convolution", fresh_windows, (keys, 1, c.kernel))
        self.key_convolution = self.param("key_convolution", fresh_windows, (keys, 1, c.kernel))
        self.value_convolution = self.param(
            "value_convolution", fresh_windows, (values, 1, c.kernel)
        )
        self.decay = self.param("decay", fresh_decays, (c.value_heads,))
        self.step_bias = self.param("step_bias", fresh_steps, (c.value_heads,))
        self.scale = self.param("scale", nn.initializers.ones, (c.value_width,))

    @staticmethod
    def empty_state(config: DeltaConfig, rows: int) -> DeltaState:
        """Returns the state before the first token."""
        c = config
        keys, values = c.key_heads * c.key_width, c.value_heads * c.value_width
        inputs = (jnp.zeros((rows, channels, c.kernel - 1)) for channels in (keys, keys, values))
        memory = jnp.zeros((rows, c.value_heads, c.key_width, c.value_width))
        return DeltaState(memory, *inputs)

    def __call__(
        self, x_BTD: Array, segments_BT: Array, state: DeltaState | None = None
    ) -> tuple[Array, DeltaState]:
        """Returns the output, and the state after the last token of each row that is not padding.

        A token whose segment differs from that of the token before starts at zero. The tokens
        before the first such one continue `state`. Segment 0 is padding, which changes no state.
        """
        c, (B, T, _) = self.config, x_BTD.shape
        before = (None,) * 4 if state is None else state
        convolved, inputs = [], []
        for project, kernel_C1k, last, width in (
            (self.query, self.query_convolution, before[1], c.key_width),
            (self.key, self.key_convolution, before[2], c.key_width),
            (self.value, self.value_convolution, before[3], c.value_width),
        ):
            y_BTC, last = causal_convolution(project(x_BTD), kernel_C1k[:, 0], segments_BT, last)
            convolved.append(nn.silu(y_BTC).reshape(B, T, -1, width))
            inputs.append(last)

        steps_BTH = self.step(x_BTD).astype(jnp.float32)
        steps_BTH = nn.softplus(steps_BTH + self.step_bias.astype(jnp.float32)[None, None])
        decay_BTH = -jnp.exp(self.decay.astype(jnp.float32))[None, None] * steps_BTH
        strength_BTH = nn.sigmoid(self.strength(x_BTD).astype(jnp.float32))
        own_BT1 = (segments_BT != 0)[:, :, None]
        decay_BTH, strength_BTH = (jnp.where(own_BT1, x, 0) for x in (decay_BTH, strength_BTH))
        memory = before[0]
        if memory is None:
            memory = jnp.zeros((B, c.value_heads, c.key_width, c.value_width))
        q, k, v = convolved
        if T == 1:
            y_BTHv, memory = one_step(q, k, v, decay_BTH, strength_BTH, memory)
        else:
            runs_BT = sequence_numbers(segments_BT)
            y_BTHv, memory = delta_rule(q, k, v, decay_BTH, strength_BTH, runs_BT, memory)
        y_BTHv = self.gated_norm(checkpoint_name(y_BTHv, PRODUCT), self.gate(x_BTD))
        return self.output(y_BTHv.reshape(B, T, -1)), DeltaState(memory, *inputs)

    def gated_norm(self, y_BTHv: Array, gate_BTC: Array) -> Array:
        y32 = y_BTHv.astype(jnp.float32)
        square = jnp.mean(jnp.square(y32), axis=-1, keepdims=True)
        y32 *= jax.lax.rsqrt(square + self.norm_epsilon)
        y32 *= self.scale.astype(jnp.float32)[None, None, None]
        return (y32 * nn.silu(gate_BTC.astype(jnp.float32)).reshape(y32.shape)).astype(self.dtype)


def fresh_decays(key: Array, shape: tuple[int, ...]) -> jax.Array:
    return jnp.log(jax.random.uniform(key, shape, minval=1.0, maxval=16.0))


def normalized(x: Array) -> Array:
    """Returns float32 vectors of length one."""
    x32 = x.astype(jnp.float32)
    return x32 * jax.lax.rsqrt(jnp.sum(jnp.square(x32), axis=-1, keepdims=True) + EPSILON)


def one_step(
    q_B1Kk: Array,
    k_B1Kk: Array,
    v_B1Hv: Array,
    decay_B1H: Array,
    strength_B1H: Array,
    memory_BHkv: Array,
) -> tuple[Array, Array]:
    """Returns y [B, 1, H, v] of one more token of each row, and the new memory."""
    shared = v_B1Hv.shape[2] // k_B1Kk.shape[2]
    q_BHk1, k_BHk1 = (
        jnp.repeat(normalized(x)[:, 0], shared, axis=1)[..., None] for x in (q_B1Kk, k_B1Kk)
    )
    q_BHk1 *= q_B1Kk.shape[-1] ** -0.5
    decay_BH11, strength_BH1 = jnp.exp(decay_B1H[:, 0, :, None, None]), strength_B1H[:, 0, :, None]
    memory = memory_BHkv * decay_BH11
    known_BHv = jnp.sum(memory * k_BHk1, axis=2)
    u_BHv = strength_BH1 * (v_B1Hv[:, 0].astype(jnp.float32) - known_BHv)
    memory = memory + k_BHk1 * u_BHv[:, :, None]
    return jnp.sum(memory * q_BHk1, axis=2)[:, None].astype(v_B1Hv.dtype), memory


def chunked(
    q_BTKk: Array,
    k_BTKk: Array,
    v_BTHv: Array,
    decay_BTH: Array,
    strength_BTH: Array,
    runs_BT: Array,
    memory_BHkv: Array,
) -> tuple[Array, Array]:
    """Returns y [B, T, H, v], and the memory after the last token of each row.

    Args:
      decay_BTH, strength_BTH: g and b, 0 at padding.
      runs_BT: the number of each column's sequence (`sequence_numbers`).
      memory_BHkv: the memory before the first token, which sequence 0 goes on with.
    """
    B, T, K, width = q_BTKk.shape
    C = min(CHUNK, 1 << (T - 1).bit_length())
    # Products of float32 would be rounded on a TPU and by tensor cores.
    exact = HIGHEST if v_BTHv.dtype == jnp.float32 else None
    product = partial(jnp.einsum, precision=exact, preferred_element_type=jnp.float32)

    def chunks(x: Array, mode: str = "constant") -> Array:
        """Returns [N, B, C, ...] of [B, T, ...], with padding behind the last token."""
        x = jnp.pad(x, [(0, 0), (0, -T % C), *[(0, 0)] * (x.ndim - 2)], mode=mode)
        return x.reshape(B, -1, C, *x.shape[2:]).swapaxes(0, 1)

    # The axes: chunks n, rows b, tokens i and j, heads h of keys, g of values, elements k and v.
    q_nbihk = chunks(normalized(q_BTKk) * width**-0.5)
    k_nbjhk = chunks(normalized(k_BTKk))
    v_nbjhgv = chunks(v_BTHv.astype(jnp.float32).reshape(B, T, K, -1, v_BTHv.shape[-1]))
    decay, strength = (
        jnp.moveaxis(chunks(x.reshape(B, T, K, -1)), 2, -1) for x in (decay_BTH, strength_BTH)
    )
    sums = running_sums(decay)
    runs_nbi = chunks(runs_BT, mode="edge")
    entering_nb = jnp.pad(runs_nbi[:-1, :, -1], ((1, 0), (0, 0)))
    enters = (runs_nbi == entering_nb[..., None])[:, :, None, None]
    same = (runs_nbi[..., None] == runs_nbi[..., None, :])[:, :, None, None]
    # What is left of the memory at each token, and of each token at later ones and at the end.
    from_start = jnp.where(enters, jnp.exp(sums[0] + sums[1]), 0)
    left = between(sums, same)
    kept, to_end = from_start[..., -1], left[..., -1, :]

    kk, qk = (product("nbihk,nbjhk->nbhij", x, k_nbjhk)[:, :, :, None] for x in (k_nbjhk, q_nbihk))
    solved = inverse(jnp.tril(kk * left * strength[..., None], -1))
    scores = qk * left
    solved = solved * strength[..., None, :]
    values = product("nbhgij,nbjhgv->nbhgiv", solved, v_nbjhgv)
    reads = product("nbhgij,nbjhk->nbhgik", solved * from_start[..., None, :], k_nbjhk)

    def of_chunk(memory: Array, chunk: tuple[Array, ...]) -> tuple[Array, Array]:
        q_bihk, k_bjhk, values, reads, scores, from_start, to_end, kept = chunk
        u_bhgiv = values - product("bhgik,bhgkv->bhgiv", reads, memory)
        y_bhgiv = product("bihk,bhgkv->bhgiv", q_bihk, memory) * from_start[..., None]
        y_bhgiv += product("bhgij,bhgjv->bhgiv", scores, u_bhgiv)
        written = product("bjhk,bhgjv->bhgkv", k_bjhk, u_bhgiv * to_end[..., None])
        return memory * kept[..., None, None] + written, y_bhgiv

    memory = memory_BHkv.reshape(B, K, -1, *memory_BHkv.shape[2:])
    in_order = q_nbihk, k_nbjhk, values, reads, scores, from_start, to_end, kept
    memory, y_nbhgiv = jax.lax.scan(of_chunk, memory, in_order)
    y_BTHv = jnp.transpose(y_nbhgiv, (1, 0, 4, 2, 3, 5)).reshape(B, -1, *v_BTHv.shape[2:])[:, :T]
    return y_BTHv.astype(v_BTHv.dtype), memory.reshape(memory_BHkv.shape)


@jax.custom_vjp
def inverse(lower: Array) -> Array:
    """Returns (I + L)^-1 of strictly lower triangular matrices [..., C, C]; C is a power of two.

    The inverses of two neighbouring blocks give that of the block of both.
    """
    *front, C, _ = lower.shape
    x = jnp.ones((*front, C, 1, 1), lower.dtype)
    size = 1
    while size < C:
        blocks = lower.reshape(*front, C // size // 2, 2, size, C // size // 2, 2, size)
        below = jnp.diagonal(blocks[..., 1, :, :, 0, :], axis1=-4, axis2=-2)
        first, second = x[..., 0::2, :, :], x[..., 1::2, :, :]
        corner = jnp.matmul(second, jnp.moveaxis(below, -1, -3), precision=HIGHEST)
        corner = -jnp.matmul(corner, first, precision=HIGHEST)
        x = jnp.concatenate(
            [
                jnp.concatenate([first, jnp.zeros_like(first)], axis=-1),
                jnp.concatenate([corner, second], axis=-1),
            ],
            axis=-2,
        )
        size *= 2
    return x[..., 0, :, :]


def inverse_backward(x: Array, dx: Array) -> tuple[Array]:
    across = x.swapaxes(-1, -2)
    dy = jnp.matmul(jnp.matmul(across, dx, precision=HIGHEST), across, precision=HIGHEST)
    return (-jnp.tril(dy, -1),)


inverse.defvjp(lambda lower: (x := inverse(lower), x), inverse_backward)


@jax.custom_vjp
def delta_rule(*arguments: Array) -> tuple[Array, Array]:
    """Returns `chunked`, of which a backward pass keeps only the arguments.

    Checkpoint policies that keep products (`Decoder.remat`) would keep those of all chunks, which
    are several times the activations of attention.
    """
    return chunked(*arguments)


def delta_rule_backward(
    arguments: tuple[Array, ...], gradient: tuple[Array, Array]
) -> tuple[Array | None, ...]:
    q, k, v, decay, strength, runs_BT, memory = arguments

    def rule(q: Array, k: Array, v: Array, decay: Array, strength: Array, memory: Array) -> Any:
        return chunked(q, k, v, decay, strength, runs_BT, memory)

    *of_numbers, of_memory = jax.vjp(rule, q, k, v, decay, strength, memory)[1](gradient)
    return *of_numbers, None, of_memory


delta_rule.defvjp(lambda *arguments: (chunked(*arguments), arguments), delta_rule_backward)
