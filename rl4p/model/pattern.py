"""Layers of several kinds: which parameters each has, and the periods in which kinds repeat.

A parameter is stacked over the layers that have it, in their order:

    layers      0      1      2          3      4      5
    mixer       delta  delta  attention  delta  delta  attention
    delta/...   0      1                 2      3                   [4, ...]
    query/...                 0                        1            [2, ...]
    gate/...    0      1      2          3      4      5            [6, ...]

Here the period of three layers repeats twice. Training scans over the repetitions, and each period
takes 2 of `delta/...`, 1 of `query/...` and 3 of `gate/...`. Layers that do not repeat are a period
of their own.

Layers whose parameters have other shapes than those of the same name in other layers have a tree of
their own under the name of its stack (`LayerKind.stack`), which then is the one name of the layer.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from rl4p.base.types import Array, Params
from rl4p.distributed.partition import GATHERED
from rl4p.model.attention import AttentionInputs
from rl4p.model.decoder_config import DecoderConfig, LayerKind
from rl4p.model.layer import Layer

Places = tuple[tuple[tuple[str, int], ...], ...]  # for each layer: its names, and where they stand


def fresh_layer(layer: Layer, key: jax.Array) -> Params:
    """Returns new parameters of one layer, under the name of their stack if they have one."""
    c, kind = layer.config, layer.kind
    x_BTD, angle = jnp.zeros((1, 1, c.width), layer.dtype), jnp.zeros((1, 1, 1, 1))
    ones = jnp.ones((1, 1), jnp.int32)
    view = AttentionInputs(angle, angle, jnp.ones((1, 1, 1), bool), ones, ones)
    shared = layer.empty_keys(1, 1, layer.dtype) if kind.shares else None
    own_BTP = jnp.zeros((1, 1, c.per_layer_width), layer.dtype) if c.per_layer_width else None
    params = layer.init(key, x_BTD, view, shared=shared, own_BTP=own_BTP)["params"]
    return {kind.stack: params} if kind.stack else params


def own_tree(params: Params, kind: LayerKind) -> Params:
    """Returns the parameters of a layer without the name of their stack."""
    return params[kind.stack] if kind.stack else params


@cache
def layer_names(config: DecoderConfig, structure: LayerKind) -> tuple[str, ...]:
    """Returns the names of the parameters of a layer, without that of their stack."""
    layer = Layer(config, "float32", kind=structure, parent=None)
    fresh = jax.eval_shape(lambda key: fresh_layer(layer, key), jax.random.key(0))
    return tuple(own_tree(fresh, structure))


def parameter_names(config: DecoderConfig, structure: LayerKind) -> tuple[str, ...]:
    """Returns the names at the top of a layer's tree: of its parameters, or of their stack."""
    return (structure.stack,) if structure.stack else layer_names(config, structure)


@cache
def places(config: DecoderConfig) -> Places:
    """Returns, for each layer, the names of its parameters and its index in their stacks."""
    before: Counter[str] = Counter()
    result = []
    for kind in config.kinds:
        names = parameter_names(config, kind.structure)
        result.append(tuple((name, before[name]) for name in names))
        before.update(names)
    return tuple(result)


class Period(NamedTuple):
    """Layers whose structures repeat: so many from `start` on, so many times."""

    start: int
    length: int
    repeats: int

    def layers(self, place: int) -> range:
        """Returns the layers at a place of the period, one for each repetition."""
        return range(self.start + place, self.start + self.length * self.repeats, self.length)

    def part(self, x: Array) -> jax.Array:
        """Returns the part of its layers of an array of all: [repeats, length, ...]."""
        own = x[self.start : self.start + self.length * self.repeats]
        return jnp.reshape(own, (self.repeats, self.length, *x.shape[1:]))


def periods(structures: Sequence[LayerKind]) -> Iterator[Period]:
    """Yields periods of all layers: from each start the one that covers the most layers."""
    start = 0
    while start < len(structures):
        best = Period(start, 1, 1)
        for length in range(1, (len(structures) - start) // 2 + 1):
            first, repeats = structures[start : start + length], 1
            end = start + length
            while structures[end : end + length] == first:
                repeats, end = repeats + 1, end + length
            if repeats > 1 and repeats * length > best.repeats * best.length:
                best = Period(start, length, repeats)
        yield best
        start += best.length * best.repeats


def load_order(config: DecoderConfig) -> np.ndarray:
    """Returns where each layer's load stands among those of `Decoder.hidden_and_load`.

    They are in the order of periods, then of places, then of repetitions.
    """
    layers = [
        layer
        for period in periods([kind.structure for kind in config.kinds])
        for place in range(period.length)
        for layer in period.layers(place)
        if layer in config.expert_layers
    ]
    return np.argsort(layers)


def stack(layers: Params, at: Places, period: Period) -> Params:
    """Returns the parameters of a period: [repeats, ...], or [repeats, n, ...] of n layers."""
    of_one = [name for one in at[period.start : period.start + period.length] for name, _ in one]
    result = {}
    for name, n in Counter(of_one).items():
        first = next(i for one in at[period.start :] for own, i in one if own == name)
        count = n * period.repeats

        def part(x: Any, first: int = first, count: int = count, n: int = n) -> Any:
            x = x if len(x) == count else x[first : first + count]
            return x if n == 1 else x.reshape(-1, n, *x.shape[1:])

        result[name] = jax.tree.map(part, layers[name])
    return result


def unstack(stacked: Params, at: Places, period: Period, place: int) -> Params:
    """Returns the parameters of a layer of one repetition of a period, from those of all.

    A backward pass slices them again (`GATHERED`): they would stand in memory twice.
    """
    own = at[period.start : period.start + period.length]
    several = Counter(name for one in own for name, _ in one)
    before = Counter(name for one in own[:place] for name, _ in one)

    def part(x: Any, i: int) -> Any:
        return checkpoint_name(x[i], GATHERED)

    return {
        name: stacked[name]
        if several[name] == 1
        else jax.tree.map(partial(part, i=before[name]), stacked[name])
        for name, _ in own[place]
    }
