"""The gated feed-forward, and mixtures of several, of which each token uses a few."""

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from rl4p.base.types import Array
from rl4p.distributed.mesh import ROW_AXES, Mesh
from rl4p.model.decoder_config import DecoderConfig
from rl4p.model.products import INIT, plus

ACTIVATIONS = {
    "silu": nn.silu,
    "gelu_tanh": partial(nn.gelu, approximate=True),
    "relu2": lambda x: jnp.square(nn.relu(x)),
}
OfExperts = tuple[Array | None, Array | None]  # corrections and factors, for `Router`
LIMIT, SLOPE = 7.0, 1.702  # of `clamped_swish`
# Of fresh parameters: p = n = 0.8 (`XIELU`).
XIELU_START = {
    "positive": math.log(math.expm1(0.8)),
    "negative": math.log(math.expm1(0.3)),
    "slope": 0.5,
    "edge": -1e-6,
}


def gated(activation: str, gate: Array | None, up: Array) -> jax.Array:
    """Returns the hidden layer of a feed-forward, which may have no gate (`DecoderConfig`)."""
    if gate is None:
        return ACTIVATIONS[activation](up)
    if activation == "clamped_swish":
        gate, up = jnp.minimum(gate, LIMIT), jnp.clip(up, -LIMIT, LIMIT)
        return (gate * nn.sigmoid(SLOPE * gate)) * (up + 1)
    return ACTIVATIONS[activation](gate) * up


class XIELU(nn.Module):
    """The activation xIELU, whose two slopes are learned in each layer (2411.13010).

        f(x) = p x^2 + b x                       where x > 0
        f(x) = n (expm1(min(x, e)) - x) + b x    elsewhere

    Here p = softplus(u) and n = b + softplus(v) with the parameters u and v; b and e are constants.
    """

    @nn.compact
    def __call__(self, x: Array) -> Array:
        u, v, b, e = (
            self.param(name, nn.initializers.constant(value), (1,)).astype(jnp.float32)
            for name, value in XIELU_START.items()
        )
        b, e = jax.lax.stop_gradient((b, e))
        x32, numbers = x.astype(jnp.float32), (nn.softplus(u), b + nn.softplus(v), b, e)
        p, n, b, e = (jnp.broadcast_to(number, x.shape) for number in numbers)
        curved = jnp.where(x32 > 0, p * jnp.square(x32), n * (jnp.expm1(jnp.minimum(x32, e)) - x32))
        return (curved + b * x32).astype(x.dtype)


class Experts(nn.Module):
    """A mixture of gated feed-forwards, of which each token uses a few (2101.03961, 2505.09388).

        p = softmax(x R); y = sum over the chosen e of p_e (act(x G_e) * x U_e) D_e

    `Router` has other choices and weights. If `ungated` is set, there is act(x U_e) alone. If
    `expert_bias` is set, each of the four products has a bias. The dispatch changes results only by
    rounding:

    * dense: every expert runs on every token, with weight 0 for experts that were not chosen.
    * grouped: pairs of a token and its chosen expert are sorted by expert, and each expert runs on
      its own range (`ragged_dot`). Experts have no capacity limit, so no pair is dropped. This
      saves work only where `ragged_dot` is native: on a CPU every expert runs on every pair.

    Devices that divide the experts (`partition.RULES`) have whole experts and the same tokens. Each
    runs its own experts, and the sum over the devices is y.
    """

    config: DecoderConfig
    dtype: Any
    dispatch: Literal["dense", "grouped"] = "dense"

    @nn.compact
    def __call__(
        self, x_BTD: Array, mesh: Mesh | None = None, routed_BTD: Array | None = None
    ) -> Array:
        """Returns y.

        Args:
          routed_BTD: what the router multiplies instead of x, if that is something else.
          mesh: the mesh that samples; None within `collectives.on_rows`, or on one device. Without
            it, the compiler would gather the experts of several devices.
        """
        c = self.config
        E, D, F = c.experts, c.expert_input or c.width, c.expert_width or c.feed_forward_width
        exact = jnp.float32 if c.router.exact else self.dtype
        router_DE = self.param("router", INIT, (c.width, E)).astype(exact)
        gates = {} if c.ungated else {"gate": (E, D, F)}
        kernels = {
            name: self.param(name, INIT, shape).astype(self.dtype)
            for name, shape in {**gates, "up": (E, D, F), "down": (E, F, D)}.items()
        }
        router_bias_E, *biases = (
            self.param(name, nn.initializers.zeros, shape).astype(self.dtype)
            if c.expert_bias
            else None
            for name, shape in (
                ("router_bias", (E,)),
                ("gate_bias", (E, F)),
                ("up_bias", (E, F)),
                ("down_bias", (E, D)),
            )
        )
        own = [kernels.get(name) for name in ("gate", "up", "down")], biases
        correction_E = factor_E = None
        if c.router.corrected:
            correction_E = self.param("router_correction", nn.initializers.zeros, (1, E))[0]
        if c.router.scaled:
            factor_E = self.param("router_factor", nn.initializers.ones, (E,))
        routed_BTD = x_BTD if routed_BTD is None else routed_BTD
        product_BTE = jnp.einsum("BTD,DE->BTE", routed_BTD.astype(exact), router_DE)
        scores_BTE = plus(product_BTE, router_bias_E).astype(jnp.float32)
        replayed_BTC: Any = self.get_variable("replay", "chosen")
        inputs, of_experts = (x_BTD, scores_BTE, replayed_BTC), (correction_E, factor_E)
        if self.is_mutable_collection("routing"):  # what `Decoder.apply` asks for
            keep = partial(self.sow, "routing", reduce_fn=lambda _, x: x)
            keep("chosen", self.choose(scores_BTE, replayed_BTC, of_experts)[1])
            keep("shares", c.router.shares(scores_BTE))
        run = self.dense if self.dispatch == "dense" else self.grouped
        return with_own_experts(run, inputs, of_experts, own, mesh)

    def choose(
        self, scores_BTE: Array, replayed_BTC: Array | None, of_experts: OfExperts
    ) -> tuple[Array, Array]:
        """Returns the weights and the numbers of the chosen experts of each token: [B, T, C]."""
        c, (correction_E, factor_E) = self.config, of_experts
        weights_BTC, chosen_BTC = c.router.choose(
            scores_BTE,
            correction_E,
            c.chosen_experts,
            normalized=c.normalized_experts,
            replayed_BTC=replayed_BTC,
        )
        if factor_E is not None:
            which_BTCE = jax.nn.one_hot(chosen_BTC, c.experts, dtype=jnp.float32)
            factors_BTC = jnp.einsum("BTCE,E->BTC", which_BTCE, factor_E.astype(jnp.float32))
            weights_BTC = weights_BTC * factors_BTC
        return weights_BTC.astype(self.dtype), chosen_BTC

    def dense(
        self,
        x_BTD: Array,
        scores_BTE: Array,
        replayed_BTC: Array | None,
        of_experts: OfExperts,
        kernels: Sequence[Any],
        biases: Sequence[Array | None],
        first: Array | int = 0,
    ) -> Array:
        """Runs E experts, of which the first has the number `first`, on every token."""
        weights_BTC, chosen_BTC = self.choose(scores_BTE, replayed_BTC, of_experts)
        (gate_EDF, up_EDF, down_EFD), (gate_bias_EF, up_bias_EF, down_bias_ED) = kernels, biases
        # All 0 for another expert.
        chosen_BTCE = jax.nn.one_hot(chosen_BTC - first, len(up_EDF), dtype=self.dtype)
        weights_BTE = jnp.einsum("BTC,BTCE->BTE", weights_BTC, chosen_BTCE)
        gate_BTEF = None
        if gate_EDF is not None:
            gate_BTEF = plus(jnp.einsum("BTD,EDF->BTEF", x_BTD, gate_EDF), gate_bias_EF)
        up_BTEF = plus(jnp.einsum("BTD,EDF->BTEF", x_BTD, up_EDF), up_bias_EF)
        hidden_BTEF = self.weighted(gate_BTEF, up_BTEF, weights_BTE[..., None])
        y_BTD = jnp.einsum("BTEF,EFD->BTD", hidden_BTEF, down_EFD)
        if down_bias_ED is None:
            return y_BTD
        return y_BTD + jnp.einsum("BTE,ED->BTD", weights_BTE, down_bias_ED)

    def weighted(self, gate: Array | None, up: Array, weights: Array) -> jax.Array:
        """Returns the hidden layer of experts, multiplied by their weights, from gate and up."""
        activation = self.config.activation
        if not self.config.router.of_inputs:
            return gated(activation, gate, up) * weights
        gate = None if gate is None else gate * weights  # a projection of w x is w times that of x
        return gated(activation, gate, up * weights)

    def grouped(
        self,
        x_BTD: Array,
        scores_BTE: Array,
        replayed_BTC: Array | None,
        of_experts: OfExperts,
        kernels: Sequence[Any],
        biases: Sequence[Array | None],
        first: Array | int = 0,
    ) -> Array:
        """Runs the pairs, of N = B x T x C, whose expert is one of the E from `first` on.

        Pairs of other experts come last and add nothing. Sorting permutes, so no gradient adds
        atomically.
        """
        gate_EDF, up_EDF, down_EFD = kernels
        E = len(up_EDF)
        weights_BTC, chosen_BTC = self.choose(scores_BTE, replayed_BTC, of_experts)
        experts_N = chosen_BTC.reshape(-1) - first
        experts_N = jnp.where((experts_N >= 0) & (experts_N < E), experts_N, E)
        sorted_N = jnp.argsort(experts_N)
        unsorted_N = jnp.argsort(sorted_N)
        sizes_E = jnp.bincount(experts_N, length=E + 1)[:E]
        here_N1 = (experts_N[sorted_N] < E)[:, None]
        # As a product, whose gradient adds in a fixed order.
        which_NE = jax.nn.one_hot(experts_N[sorted_N], E, dtype=self.dtype)
        gate_bias_NF, up_bias_NF, down_bias_ND = (
            None if bias is None else which_NE @ bias for bias in biases
        )
        x_BTCD = jnp.broadcast_to(x_BTD[:, :, None], (*chosen_BTC.shape, x_BTD.shape[-1]))
        # `ragged_dot` and its gradient leave rows of other experts undefined: none may be read.
        x_ND = jnp.where(here_N1, permuted(x_BTCD.reshape(-1, x_BTD.shape[-1]), sorted_N), 0)
        gate_NF = None
        if gate_EDF is not None:
            gate_NF = plus(jax.lax.ragged_dot(x_ND, gate_EDF, sizes_E), gate_bias_NF)
        up_NF = plus(jax.lax.ragged_dot(x_ND, up_EDF, sizes_E), up_bias_NF)
        weights_N1 = jnp.where(here_N1, permuted(weights_BTC.reshape(-1), sorted_N)[:, None], 0)
        hidden_NF = self.weighted(gate_NF, up_NF, weights_N1)
        bias_ND = None if down_bias_ND is None else weights_N1 * down_bias_ND
        y_ND = plus(jax.lax.ragged_dot(hidden_NF, down_EFD, sizes_E), bias_ND)
        y_ND = jnp.where(here_N1, y_ND, 0)
        return jnp.sum(permuted(y_ND, unsorted_N).reshape(x_BTCD.shape), axis=2)


class SharedExperts(nn.Module):
    """A gated feed-forward that every token uses, beside its chosen experts (2401.06066).

    If `weighted_shared` is set, it is multiplied by sigmoid(x w) (Qwen1.5-MoE).

    Attributes:
      dense: a function that returns the projection to so many features.
    """

    config: DecoderConfig
    dtype: Any
    dense: Callable[[int], nn.Module]

    def setup(self) -> None:
        c = self.config
        self.gate = None if c.ungated else self.dense(c.shared_width)
        self.up = self.dense(c.shared_width)
        self.down = self.dense(c.width)
        if c.weighted_shared:
            self.weight = self.param("weight", INIT, (1, c.width))

    def __call__(self, x_BTD: Array) -> Array:
        gate = None if self.gate is None else self.gate(x_BTD)
        y_BTD = self.down(gated(self.config.activation, gate, self.up(x_BTD)))
        if not self.config.weighted_shared:
            return y_BTD
        weight_BT1 = nn.sigmoid(jnp.einsum("BTD,ND->BTN", x_BTD, self.weight.astype(self.dtype)))
        return y_BTD * jnp.broadcast_to(weight_BT1, y_BTD.shape)


def with_own_experts(
    run: Callable[..., Array],
    inputs: tuple[Any, ...],
    whole: Any,
    experts: Any,
    mesh: Mesh | None,
) -> Array:
    """Returns run(*inputs, whole, *experts, first), summed over devices that divide the experts.

    Args:
      inputs: arrays [B, T, ...], whose rows other devices may divide; or None.
      whole: arrays that each device has in full.
      experts: arrays [E, ...].
      mesh: as in `Experts.__call__`.
    """
    rows, axes, devices = PartitionSpec(), ("tp",), jax.sharding.get_abstract_mesh()
    if mesh is not None and mesh.size > 1:
        axes, devices = mesh.product_axes, mesh.devices
        of_rows = tuple(axis for axis in ROW_AXES if axis not in axes)
        if len(inputs[0]) % math.prod(devices.shape[axis] for axis in of_rows) == 0:
            rows = PartitionSpec(of_rows)
    elif devices.shape.get("tp", 1) == 1:
        return run(*inputs, whole, *experts)

    count = math.prod(devices.shape[axis] for axis in axes)

    def of_device(inputs: tuple[Any, ...], whole: Any, experts: Any) -> Array:
        first = jax.lax.axis_index(axes) * len(experts[0][-1])
        with jax.named_scope(experts_of(count)):
            y_BTD = run(*inputs, whole, *experts, first)
        return jax.lax.psum(y_BTD, axes)

    return jax.shard_map(
        of_device,
        mesh=devices,
        in_specs=(rows, PartitionSpec(), PartitionSpec(axes)),
        out_specs=rows,
        axis_names={*devices.shape} if mesh is not None else {"tp"},
        check_vma=False,
    )(inputs, whole, experts)


def experts_of(count: int) -> str:
    """Returns the name of a scope in which each of so many devices runs its own experts."""
    return f"experts_of_{count}_devices"


def devices_of_experts(scope: str) -> int | None:
    """Returns how many devices divide the experts in this scope; None if it does not say."""
    match = re.search(r"experts_of_(\d+)_devices", scope)
    return int(match[1]) if match else None


def permuted(x: Array, order_N: Array) -> jax.Array:
    return jnp.asarray(x).at[order_N].get(unique_indices=True, mode="promise_in_bounds")
