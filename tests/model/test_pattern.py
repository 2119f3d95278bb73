"""Tests how layers of several kinds are stacked, and the periods in which they repeat."""

import dataclasses
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.model.decoder import Decoder
from rl4p.model.decoder_config import ConvolutionConfig, LayerKind
from rl4p.model.pattern import Period, parameter_names, periods, places, stack, unstack
from tests.golden.cases import decoder_config

DELTA, FULL, CONVOLUTION = (
    LayerKind(False, False, mixer) for mixer in ("delta", "attention", "convolution")
)


@pytest.fixture
def config():
    """Seven layers: a convolution, twice a period of three, which has two of attention."""
    mixers = ("convolution", *("attention", "attention", "convolution") * 2)
    options = {"mixers": mixers, "layers": 7, "convolution": ConvolutionConfig()}
    return dataclasses.replace(decoder_config("qwen3"), **options)


@pytest.mark.parametrize(
    ("structures", "expected"),
    [
        ([FULL] * 5, [(0, 1, 5)]),
        ([DELTA, DELTA, DELTA, FULL] * 3, [(0, 4, 3)]),
        ([DELTA] * 3 + [FULL] * 9, [(0, 1, 3), (3, 1, 9)]),
        ([DELTA, FULL, CONVOLUTION], [(0, 1, 1), (1, 1, 1), (2, 1, 1)]),
        ([DELTA, FULL] * 2 + [DELTA], [(0, 2, 2), (4, 1, 1)]),
        ([DELTA, DELTA, FULL, DELTA, DELTA, FULL, CONVOLUTION], [(0, 3, 2), (6, 1, 1)]),
        ([FULL], [(0, 1, 1)]),
    ],
)
def test_a_period_covers_the_most_layers(structures, expected):
    assert [*periods(structures)] == [Period(*each) for each in expected]


def test_kinds_with_the_same_parameters_are_one_structure():
    slides, unrotated = LayerKind(True, False), LayerKind(False, True)
    assert slides.structure == unrotated.structure == FULL


def test_a_parameter_is_stacked_over_the_layers_that_have_it(config):
    at = [dict(own) for own in places(config)]
    assert [own.get("query") for own in at] == [None, 0, 1, None, 2, 3, None]
    assert [own.get("convolution") for own in at] == [0, None, None, 1, None, None, 2]
    assert [own["gate"] for own in at] == [*range(7)]
    shapes = jax.eval_shape(Decoder(config=config).init, jax.random.key(0))["layers"]
    counts = {name: {len(x) for x in jax.tree.leaves(tree)} for name, tree in shapes.items()}
    assert (counts["query"], counts["convolution"], counts["gate"]) == ({4}, {3}, {7})
    assert "query" not in parameter_names(config, CONVOLUTION)


def test_a_period_has_the_parameters_of_its_layers(config):
    """Each parameter has the number of its place in the stack."""
    at = places(config)
    counts = {"query": 4, "convolution": 3, "gate": 7}
    layers = {name: {"x": jnp.arange(n)[:, None]} for name, n in counts.items()}
    at = tuple(tuple((name, i) for name, i in own if name in layers) for own in at)
    found = []
    for period in periods([kind.structure for kind in config.kinds]):
        stacked = stack(layers, at, period)
        for repeat in range(period.repeats):
            one = jax.tree.map(lambda x, repeat=repeat: x[repeat], stacked)
            found += [unstack(one, at, period, place) for place in range(period.length)]
    numbers = [{name: int(np.ravel(tree["x"])[0]) for name, tree in own.items()} for own in found]
    assert numbers == [dict(own) for own in at]


@pytest.mark.slow
def test_layers_are_run_in_their_order(config):
    """A decoder with a period equals the same layers, each in a period of its own."""
    decoder = Decoder(config=config)
    params = jax.jit(decoder.init)(jax.random.key(0))
    tokens = np.random.default_rng(0).integers(0, config.vocabulary, (2, 9)).astype(np.int32)
    row = tokens, np.broadcast_to(np.arange(9, dtype=np.int32), (2, 9)), np.ones((2, 9), np.int32)
    together = jax.jit(decoder.hidden)(params, *row)
    cache, at = decoder.empty_cache(2, 9), places(config)
    layers = params["layers"]
    alone = [
        {name: jax.tree.map(lambda x, i=i: np.asarray(x)[i], layers[name]) for name, i in own}
        for own in at
    ]
    apart, _ = jax.jit(decoder.extend)(params | {"layers": tuple(alone)}, *row, cache, 0)
    np.testing.assert_allclose(together, apart, atol=2e-5)
    assert np.std(together) > 0.1


@pytest.mark.quick(1)
@pytest.mark.parametrize("remat", ["none", "elementwise", "layer"])
def test_a_backward_pass_keeps_no_copy_of_the_parameters_of_a_period(config, remat):
    """A layer's slice of them is a copy: all slices together are once more the parameters."""
    options = {"layers": 6, "mixers": config.mixers[1:], "feed_forward_width": 8192}
    config = dataclasses.replace(config, **options)
    decoder = Decoder(config=config, remat=remat)
    params = jax.eval_shape(decoder.init, jax.random.key(0))
    row = [jax.ShapeDtypeStruct((1, 2), jnp.int32)] * 3
    gradient = jax.grad(lambda params, row: decoder.hidden(params, *row).sum())
    memory = jax.jit(gradient).lower(params, row).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 0.75 * memory.argument_size_in_bytes


GATHERED_AGAIN = """
import jax, jax.numpy as jnp
from rl4p.distributed import collectives, partition
from rl4p.distributed.mesh import Mesh
from rl4p.model.scratch import Scratch

WIDTH, WIDE = 64, 320

def handed_on(jaxpr):
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            yield from (x.aval.shape for x in equation.outvars)
        for jaxpr in jax.core.jaxprs_in_params(equation.params):
            yield from handed_on(jaxpr)

for remat in ("none", "elementwise", "layer"):
    for interval in (None, 2):
        mesh = Mesh(dp=1, fsdp=2, tp=2)
        policy, params = Scratch(
            width=WIDTH, heads=4, num_kv_heads=2, layers=4, feed_forward_width=WIDE, remat=remat,
            attention_interval=interval,
        ).abstract(mesh)

        def gradient(params, rows):
            def loss(params):
                return policy.decoder.hidden(partition.gather(params, "float32"), *rows).sum()
            return collectives.total_gradient(mesh, jax.grad(loss)(params))

        rows = [jax.ShapeDtypeStruct((4, 8), jnp.int32)] * 3
        function = lambda p, r: collectives.on_rows(
            mesh, gradient, p, r, results=collectives.parts(mesh, p)
        )
        shapes = {shape[-2:] for shape in handed_on(jax.make_jaxpr(function)(params, rows).jaxpr)}
        assert (WIDTH // 2, WIDE) in shapes  # gradients of the shards
        assert (WIDTH, WIDE) not in shapes, remat
"""


@pytest.mark.slow
def test_a_backward_pass_gathers_parameters_again(on_devices):
    done = subprocess.run(
        [sys.executable, "-c", GATHERED_AGAIN], capture_output=True, text=True, env=on_devices(4)
    )
    assert done.returncode == 0, done.stderr
