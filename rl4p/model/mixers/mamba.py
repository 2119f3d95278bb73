"""Mamba-2: a recurrence over a matrix per head, computed by matrix products (2405.21060).

Dimension letters of this file: G groups of heads, H heads, h their width, N the size of a state, C
the channels of a convolution and k its width, Q the tokens of a chunk.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from rl4p.base.types import Array
from rl4p.model.decoder_config import MambaConfig
from rl4p.model.mixers.convolution import causal_convolution, fresh_windows, sequence_numbers
from rl4p.model.mixers.decays import between, running_sums

CHUNK = (
    64  # tokens whose scores are one matrix; longer chunks need more products, shorter more states
)
LEAST_STEP, MOST_STEP = 1e-3, 1e-1  # the step lengths of fresh parameters


class MambaState(NamedTuple):
    """What decoding continues from: the state of each head, and the last inputs of convolutions."""

    state_BHhN: Array
    queries_BCk: Array
    keys_BCk: Array
    values_BCk: Array

    slot_axes = (None, None, None, None)
    divided = True


class Mamba(nn.Module):
    """A Mamba-2 mixer (2405.21060), with one decay per head and token.

        d = softplus(x W_d + b);  a = exp(-exp(A) d)
        S_t = a_t S_t-1 + d_t v_t k_t^T;  y_t = S_t q_t + D v_t
        out = norm(y silu(x W_g)) W_o

    Queries, keys and values are silu(convolution(x W)). The heads of a group share q and k. The
    norm takes the mean square over the heads of a group.

    Attributes:
      dense: makes a projection: `dense(features, use_bias=...)`.
    """

    config: MambaConfig
    width: int
    norm_epsilon: float
    dtype: Any
    dense: Callable[..., nn.Module]

    def setup(self) -> None:
        c = self.config
        inner, shared, bias = c.heads * c.head_width, c.groups * c.state, c.projection_bias
        self.query, self.key = (self.dense(shared, use_bias=bias) for _ in range(2))
        self.value, self.gate = (self.dense(inner, use_bias=bias) for _ in range(2))
        self.step = self.dense(c.heads, use_bias=bias)
        self.output = self.dense(self.width, use_bias=bias)
        self.decay = self.param("decay", fresh_decays, (c.heads,))
        self.step_bias = self.param("step_bias", fresh_steps, (c.heads,))
        self.skip = self.param("skip", nn.initializers.ones, (c.heads,))
        self.scale = self.param("scale", nn.initializers.ones, (inner,))
        for name, channels in (("query", shared), ("key", shared), ("value", inner)):
            kernel = self.param(f"{name}_convolution", fresh_windows, (channels, 1, c.kernel))
            setattr(self, f"{name}_convolution", kernel)
            if c.convolution_bias:
                zeros = nn.initializers.zeros
                setattr(self, f"{name}_bias", self.param(f"{name}_bias", zeros, (channels,)))

    @staticmethod
    def empty_state(config: MambaConfig, rows: int) -> MambaState:
        c = config
        shared, inner = c.groups * c.state, c.heads * c.head_width
        inputs = (jnp.zeros((rows, channels, c.kernel - 1)) for channels in (shared, shared, inner))
        return MambaState(jnp.zeros((rows, c.heads, c.head_width, c.state)), *inputs)

    def __call__(
        self, x_BTD: Array, segments_BT: Array, state: MambaState | None = None
    ) -> tuple[Array, MambaState]:
        """Returns the output, and the state after the last token of each row that is not padding.

        A token whose segment differs from that of the token before starts at zero. The tokens
        before the first such one continue `state`. Segment 0 is padding, which changes no state.
        """
        c, (B, T, _) = self.config, x_BTD.shape
        before = (None,) * 4 if state is None else state
        q_BTC, queries_BCk = self.convolved("query", x_BTD, segments_BT, before[1])
        k_BTC, keys_BCk = self.convolved("key", x_BTD, segments_BT, before[2])
        v_BTC, values_BCk = self.convolved("value", x_BTD, segments_BT, before[3])
        q_BTGN, k_BTGN = (x.reshape(B, T, c.groups, c.state) for x in (q_BTC, k_BTC))
        v_BTHh = v_BTC.reshape(B, T, c.heads, c.head_width)
        state_BHhN = before[0]
        if state_BHhN is None:
            state_BHhN = jnp.zeros((B, c.heads, c.head_width, c.state))
        steps_BTH = self.steps(self.step(x_BTD), segments_BT)
        y_BTHh, state_BHhN = recurrence(
            *(q_BTGN, k_BTGN, v_BTHh, steps_BTH, self.decay, segments_BT, state_BHhN),
            exact=jnp.dtype(self.dtype) == jnp.float32,
        )
        y_BTHh = y_BTHh + self.skip.astype(jnp.float32)[None, None, :, None] * v_BTHh
        y_BTC = self.gated_norm(y_BTHh.reshape(B, T, -1), self.gate(x_BTD))
        return self.output(y_BTC), MambaState(state_BHhN, queries_BCk, keys_BCk, values_BCk)

    def convolved(
        self, name: str, x_BTD: Array, segments_BT: Array, inputs_BCk: Array | None
    ) -> tuple[Array, Array]:
        """Returns the queries, keys or values in float32, and the inputs to continue from."""
        kernel_C1k, bias = getattr(self, f"{name}_convolution"), getattr(self, f"{name}_bias", None)
        x_BTC = getattr(self, name)(x_BTD)
        y_BTC, inputs_BCk = causal_convolution(
            x_BTC, kernel_C1k[:, 0], segments_BT, inputs_BCk, bias
        )
        return nn.silu(y_BTC.astype(jnp.float32)), inputs_BCk

    def steps(self, x_BTH: Array, segments_BT: Array) -> Array:
        """Returns the step lengths in float32, which are 0 for padding."""
        c = self.config
        steps_BTH = nn.softplus(x_BTH.astype(jnp.float32) + self.step_bias[None, None])
        steps_BTH = jnp.clip(steps_BTH, c.least_step, c.most_step)
        return jnp.where(segments_BT[..., None] != 0, steps_BTH, 0)

    def gated_norm(self, y_BTC: Array, gate_BTC: Array) -> Array:
        c, (B, T, _) = self.config, y_BTC.shape
        y_BTGM = (y_BTC * nn.silu(gate_BTC.astype(jnp.float32))).reshape(B, T, c.groups, -1)
        square = jnp.mean(jnp.square(y_BTGM), axis=-1, keepdims=True)
        y_BTC = (y_BTGM * jax.lax.rsqrt(square + self.norm_epsilon)).reshape(B, T, -1)
        return (y_BTC * self.scale.astype(jnp.float32)[None, None]).astype(self.dtype)


def fresh_decays(_: Array, shape: tuple[int, ...]) -> jax.Array:
    return jnp.log(jnp.arange(1.0, shape[0] + 1))


def fresh_steps(key: Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns biases whose softplus is log-uniform between the limits of fresh steps."""
    exponents = jax.random.uniform(key, shape, minval=0.0, maxval=1.0)
    steps = LEAST_STEP * (MOST_STEP / LEAST_STEP) ** exponents
    return steps + jnp.log(-jnp.expm1(-steps))


def recurrence(
    q_BTGN: Array,
    k_BTGN: Array,
    v_BTHh: Array,
    steps_BTH: Array,
    decay_H: Array,
    segments_BT: Array,
    state_BHhN: Array,
    *,
    exact: bool = True,
) -> tuple[Array, Array]:
    """Returns S q for each token, and the last S (`Mamba`), all in float32.

    Tokens are processed in chunks. Within a chunk, the score of a later token t for an earlier one
    s is q_t k_s exp(sum of log a from s + 1 to t); what came before the chunk is one state.

    Args:
      exact: accelerators do not round the factors of products of float32.
    """
    (B, T, G, N), (H, h) = q_BTGN.shape, v_BTHh.shape[2:]
    R = H // G
    logs_BTH = -jnp.exp(decay_H.astype(jnp.float32))[None, None] * steps_BTH
    v_BTHh = v_BTHh * steps_BTH[..., None]
    state = state_BHhN.reshape(B, G, R, h, N)
    v, logs = v_BTHh.reshape(B, T, G, R, h), logs_BTH.reshape(B, T, G, R)
    if T == 1:
        q, k = (x[:, 0, :, None, None] for x in (q_BTGN, k_BTGN))
        state = jnp.exp(logs)[:, 0, ..., None, None] * state + v[:, 0, ..., None] * k
        y = jnp.sum(state * q, axis=-1)
        return y.reshape(B, T, H, h), state.reshape(B, H, h, N)
    size = min(T, CHUNK)
    chunks = -(-T // size)

    def divided(x: Array) -> jax.Array:
        x = jnp.pad(x, [(0, 0), (0, chunks * size - x.shape[1]), *[(0, 0)] * (x.ndim - 2)])
        return x.reshape(B, chunks, size, *x.shape[2:]).swapaxes(0, 1)

    padded_BT = jnp.pad(segments_BT, ((0, 0), (0, chunks * size - T)))
    runs_BT = sequence_numbers(padded_BT)
    inputs = *map(divided, (q_BTGN, k_BTGN, v, logs)), divided(runs_BT)
    start = state, jnp.zeros(B, jnp.int32)
    precision = jax.lax.Precision.HIGHEST if exact else None
    run = partial(run_chunk, partial(jnp.einsum, precision=precision))
    # Saving the state of each chunk, and no scores, is what makes long sequences fit.
    (state, _), y = jax.lax.scan(jax.checkpoint(run), start, inputs)
    y_BTHh = y.swapaxes(0, 1).reshape(B, chunks * size, H, h)[:, :T]
    return y_BTHh, state.reshape(B, H, h, N)


def run_chunk(
    product: Callable[..., Any], carried: tuple[Array, Array], inputs: tuple[Array, ...]
) -> tuple[tuple[Array, Array], Array]:
    """Runs one chunk of `recurrence`; R is the number of heads in a group."""
    state_BGRhN, before_B = carried
    q_BQGN, k_BQGN, v_BQGRh, logs_BQGR, runs_BQ = inputs
    sums_2BGRQ = running_sums(jnp.moveaxis(logs_BQGR, 1, -1))
    end_B, sums_BGRQ = runs_BQ[:, -1], sums_2BGRQ[0] + sums_2BGRQ[1]

    def alive(exponents: Array, where: Array) -> jax.Array:
        return jnp.exp(jnp.where(jnp.expand_dims(where, (1, 2)), exponents, -jnp.inf))

    same_BQQ = runs_BQ[:, :, None] == runs_BQ[:, None, :]
    decays_BGRQQ = between(sums_2BGRQ, same_BQQ[:, None, None])
    scores_BGQQ = product("BtGN,BsGN->BGts", q_BQGN, k_BQGN)
    y_BQGRh = product("BGRts,BsGRh->BtGRh", scores_BGQQ[:, :, None] * decays_BGRQQ, v_BQGRh)
    since_BGRQ = alive(sums_BGRQ, runs_BQ == before_B[:, None])
    read_BGRQh = product("BtGN,BGRhN->BGRth", q_BQGN, state_BGRhN) * since_BGRQ[..., None]
    until_BGRQ = decays_BGRQQ[..., -1, :]
    kept_BGR = alive(sums_BGRQ[..., -1:], (before_B == end_B)[:, None])
    state_BGRhN = kept_BGR[..., None] * state_BGRhN + product(
        "BsGRh,BsGN->BGRhN", v_BQGRh * jnp.moveaxis(until_BGRQ, -1, 1)[..., None], k_BQGN
    )
    return (state_BGRhN, end_B), y_BQGRh + jnp.moveaxis(read_BGRQh, 3, 1)
