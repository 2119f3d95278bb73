"""Tests that matrix products are counted by their shapes and by the turns of their loops."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from rl4p.base.types import Microbatching
from rl4p.learner.microbatches import fold
from rl4p.model.decoder_config import DecoderConfig
from rl4p.model.experts import Experts
from rl4p.tools.planning.flops import product_flops
from tests.support.plans import KERNELS, LAYERS, WIDTH

A, B = jnp.ones((3, 4)), jnp.ones((4, 5))
PRODUCT = 2 * 3 * 4 * 5
SQUARE = jnp.ones((4, 4))


def count(function, *arguments, iterations=1):
    return product_flops(jax.make_jaxpr(function)(*arguments).jaxpr, iterations)


@pytest.mark.slow
def test_products_are_counted_as_often_as_their_loops_turn(small):
    P, G, W, R = 8, 4, 16, 16
    head = 264 * WIDTH
    kernels = 2 * KERNELS
    prefill = P * W * kernels + LAYERS * P * 2 * 2 * WIDTH * W * W
    assert small["costs"]["prefill"]["flops"] == pytest.approx(prefill)
    decode = R * P * G * (kernels + 2 * head + LAYERS * 2 * 2 * WIDTH * (W + R))
    assert small["costs"]["decode"]["flops"] == pytest.approx(decode)
    # A forward, twice that for the backward, and one more forward of what is not kept.
    tokens = P * G * (W + R)
    forward = tokens * (kernels + 2 * head)
    attention = LAYERS * P * G * 2 * 2 * WIDTH * (W + R) ** 2
    assert 3 * forward <= small["costs"]["update"]["flops"] <= 4 * (forward + attention)


def test_a_product_is_two_for_each_pair_of_numbers_that_meet():
    assert count(jnp.matmul, A, B) == PRODUCT
    assert count(lambda a, b: jnp.einsum("xab,xbc->xac", a, b), A[None], B[None]) == PRODUCT
    batched = jnp.ones((7, 3, 4)), jnp.ones((7, 4, 5))
    assert count(jnp.matmul, *batched) == 7 * PRODUCT
    assert count(jnp.vdot, jnp.ones(9), jnp.ones(9)) == 2 * 9


def test_what_is_no_product_counts_nothing():
    assert count(lambda a: jnp.sum(jnp.exp(a) * a + jnp.cumsum(a)[0]), A) == 0


def test_programs_within_programs_are_counted_each_time_they_are_called():
    inner = jax.jit(jnp.matmul)
    assert count(lambda a, b: inner(a, b) + inner(a, b + 1), A, B) == 2 * PRODUCT


def test_a_backward_pass_multiplies_twice_and_again_what_is_recomputed():
    def loss(a, b):
        return jnp.sum(jnp.sin(a @ b))

    assert count(jax.grad(loss, (0, 1)), A, B) == 3 * PRODUCT
    assert count(jax.grad(jax.checkpoint(loss), (0, 1)), A, B) == 4 * PRODUCT


def test_a_scan_turns_as_often_as_it_is_long():
    def scanned(x):
        return jax.lax.scan(lambda x, _: (x @ SQUARE, None), x, None, length=6)[0]

    assert count(scanned, A) == 6 * 2 * 3 * 4 * 4
    assert count(scanned, A, iterations=9) == 6 * 2 * 3 * 4 * 4


def test_a_loop_of_unknown_length_turns_as_often_as_the_caller_says():
    def looped(x):
        return jax.lax.while_loop(lambda x: jnp.sum(x) < 9, lambda x: x @ SQUARE, x)

    assert count(looped, A) == 2 * 3 * 4 * 4
    assert count(looped, A, iterations=9) == 9 * 2 * 3 * 4 * 4


def test_of_branches_the_dearest_counts():
    def branched(x, a, b):
        return jax.lax.cond(x, lambda: (a @ b) @ jnp.ones((5, 5)), lambda: a @ b)

    assert count(branched, True, A, B) == PRODUCT + 2 * 3 * 5 * 5


def test_microbatches_are_those_of_rows_of_the_full_width():
    """Twelve rows of 128 columns, 256 tokens per microbatch: six iterations of two rows."""

    def add(total, part, rows):
        return total + jnp.sum(part @ jnp.ones((128, 3)))

    def folded(x, ids):
        return fold(add, jnp.float32(0), x, ids, Microbatching(tokens=256, widths=1))

    rows = jnp.ones((12, 128)), jnp.ones((12, 128), jnp.int32)
    assert count(folded, *rows) == count(folded, *rows, iterations=99) == 12 * 2 * 128 * 3


def test_each_row_of_a_ragged_product_meets_one_of_the_matrices():
    x, matrices = jnp.ones((6, 4)), jnp.ones((3, 4, 5))
    sizes = jnp.array([1, 2, 3], jnp.int32)
    assert count(jax.lax.ragged_dot, x, matrices, sizes) == 2 * 6 * 4 * 5


def test_devices_that_divide_experts_divide_their_products():
    """Both of two devices sort all pairs, and the products of a pair are run by one of them."""
    config = DecoderConfig(
        vocabulary=8, width=4, layers=1, heads=1, num_kv_heads=1, head_width=4, max_positions=8,
        feed_forward_width=6, experts=4, chosen_experts=2,
    )  # fmt: skip
    module = Experts(config, jnp.dtype("float32"), "grouped")
    x_BTD = jnp.ones((3, 5, 4))
    params = module.init(jax.random.key(0), x_BTD)
    devices = AbstractMesh((1, 1, 2), ("dp", "fsdp", "tp"), axis_types=(AxisType.Auto,) * 3)
    mesh = SimpleNamespace(size=2, product_axes=("tp",), devices=devices)

    def total(params, mesh=None):
        return jnp.sum(module.apply(params, x_BTD, mesh))

    tokens, kernel = 3 * 5, 4 * 6
    expected = 2 * tokens * 4 * 4 + 3 * 2 * (2 * tokens) * kernel  # the router, and three kernels
    assert count(total, params) == count(partial(total, mesh=mesh), params) == expected
    gradient = jax.grad(total)
    assert count(gradient, params) == count(partial(gradient, mesh=mesh), params) > 2 * expected


def test_what_each_device_does_for_itself_is_done_by_all():
    mesh = AbstractMesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    spec = PartitionSpec("a")

    def on_each(x):
        return jax.shard_map(
            lambda x: x @ SQUARE, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
        )(x)

    # Three rows on each of two devices, repeated on the four along the other axis.
    assert count(on_each, jnp.ones((6, 4))) == 8 * 2 * 3 * 4 * 4


def test_a_kernel_multiplies_at_each_place_of_its_grid():
    def kernel(x, y):
        y[...] = x[...] @ jnp.ones((8, 8))

    block = pl.BlockSpec((8, 8), lambda i, j: (i, j))
    call = pl.pallas_call(
        kernel,
        grid=(2, 3),
        in_specs=[block],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct((16, 24), jnp.float32),
    )
    assert count(call, jnp.ones((16, 24))) == pytest.approx(2 * 3 * 2 * 8**3)
