"""Tests that a plan has the programs of a run, and counts arrays that stay on the devices."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from rl4p.base.types import Microbatching
from rl4p.distributed.placement import with_shardings
from rl4p.learner.microbatches import fold
from rl4p.model.decoder_config import DecoderConfig
from rl4p.model.experts import Experts
from rl4p.rollout.demonstrations import Demonstrations
from rl4p.tools.planning import programs as planning
from rl4p.tools.planning.programs import (
    Program,
    bytes_of_arguments,
    bytes_refused,
    product_flops,
    program,
    rollout,
)
from tests.support.plans import FSDP, KERNELS, KEYS, LAYERS, TP, WIDTH

# The small run on eight devices.


@pytest.mark.slow
def test_decoding_gathers_no_parameters(small):
    assert max(small["gathered"], default=0) < WIDTH * KEYS * 4 / TP  # the smallest kernel's shard


@pytest.mark.slow
def test_decoding_copies_no_cache(small):
    keys_of_a_layer = 8 * KEYS * 32 * 4 / TP  # 8 slots per device, 32 positions
    assert small["costs"]["decode"]["largest_loop_copy"] < keys_of_a_layer


@pytest.mark.slow
def test_a_step_is_its_programs_in_their_order(small):
    assert list(small["costs"]) == ["weights", "prefill", "arrange", "decode", "update"]


@pytest.mark.slow
def test_decoding_turns_once_a_token_and_reads_what_it_turns_over(small):
    """All 32 sequences decode 16 tokens; a decode step reads the parameters and half a cache."""
    assert small["iterations"] == dict.fromkeys(small["costs"], 1) | {"decode": 16}
    parameters = 4 * (KERNELS + 264 * WIDTH) / TP
    cache = LAYERS * 2 * (32 / FSDP) * KEYS * (16 + 16) * 4 / TP
    assert small["read"] == pytest.approx(16 * (parameters + cache * 24 / 32), rel=0.02)


@pytest.mark.slow
def test_what_lives_is_at_least_what_a_program_is_given(small):
    for phase, found in small["costs"].items():
        assert small["live"][phase] >= 0.99 * found["arguments"], phase


# A single program.

X = jax.ShapeDtypeStruct((4, 8), jnp.float32)
Y = jax.ShapeDtypeStruct((8,), jnp.bfloat16)
KEY = jax.eval_shape(lambda: jax.random.key(0))


def test_a_program_is_compiled_once_and_says_so(capsys):
    made = program("scores", jax.jit(lambda x: (x @ x.T).astype(jnp.bfloat16)).trace(X), [X, X])
    assert capsys.readouterr().out == "scores: compiled in 0 s\n"
    assert (made.phase, made.live, made.refused) == ("scores", 2 * 4 * 8 * 4, 0)
    assert (made.iterations, made.read) == (1, None)
    results = with_shardings(made.traced.out_info, made.compiled.output_shardings)
    assert (results.shape, results.dtype) == ((4, 4), jnp.bfloat16)
    assert results.sharding is not None


def refusing(message):
    """Returns a traced function whose compilation fails with this message."""

    def compile():
        raise jax.errors.JaxRuntimeError(message)

    return SimpleNamespace(lower=lambda: SimpleNamespace(compile=compile), in_avals=((X,), {}))


EXCEEDS = (
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries "
    "(15.96G) exceeds available HBM"
)


def test_a_program_that_cannot_fit_is_kept_with_what_it_asked_for():
    made = program("update", refusing(EXCEEDS), [X, X])
    assert made.compiled is None
    assert made.refused == int(15.96 * 2**30)
    assert (made.live, made.arguments) == (2 * 4 * 8 * 4, 4 * 8 * 4)  # one array is beside it


@pytest.mark.parametrize(
    ("arguments", "live", "size"),
    [
        ([], [X], 0),
        ([X], [X], 128),
        ([X, X], [X, X, X], 256),
        ([X, X], [X], 128),  # one array is given twice
        ([X, Y], [Y, X], 128 + 16),
        ([Y], [X, Y.update(dtype=jnp.float32)], 0),
        ([(X, {"a": Y})], [[X], {"b": (Y, Y)}], 128 + 16),
        ([KEY], [KEY, X], 8),
    ],
)
def test_the_bytes_of_arguments_are_those_of_live_arrays(arguments, live, size):
    traced = jax.jit(lambda *arguments: 0).trace(*arguments)
    assert bytes_of_arguments(traced, live) == size


def test_any_other_error_of_the_compiler_is_raised():
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL: a bug"):
        program("update", refusing("INTERNAL: a bug"), [X])


@pytest.mark.parametrize(
    ("words", "size"),
    [
        (EXCEEDS, int(15.96 * 2**30)),
        ("RESOURCE_EXHAUSTED: Ran out of memory. Used 40.5G of 31.25G hbm.", int(40.5 * 2**30)),
        ("RESOURCE_EXHAUSTED: (512.0K) exceeds", 512 * 2**10),
        ("RESOURCE_EXHAUSTED: (3.5MiB) exceeds", int(3.5 * 2**20)),
        ("RESOURCE_EXHAUSTED: (1.5T) exceeds", int(1.5 * 2**40)),
        ("RESOURCE_EXHAUSTED: something\nelse, Used 2.00G of 1G", 2 * 2**30),
        ("INVALID_ARGUMENT: 15.96G exceeds nothing", 0),
        ("RESOURCE_EXHAUSTED: no number", 0),
    ],
)
def test_what_the_compiler_refuses_is_read_from_its_words(words, size):
    assert bytes_refused(words) == size


def test_a_sampler_of_others_runs_no_program_of_ours():
    phases = SimpleNamespace(rollout=Demonstrations(max_response_tokens=8))
    run = SimpleNamespace(phases=phases, mesh=SimpleNamespace())
    assert rollout(run) == []
    assert list(planning.weights_for_sampling(run)) == []


@pytest.mark.slow
def test_what_follows_a_prefill_that_cannot_fit_is_not_compiled(monkeypatch):
    from rl4p.configuration import compose, instantiate
    from rl4p.tools.planning.abstract import abstract_run

    config = compose(["model=scratch", "model.width=32", "model.heads=2", "mesh=single"])
    run = abstract_run(config, instantiate(config.mesh))

    def refused(phase, traced, live, **options):
        return Program(phase=phase, traced=traced, compiled=None, live=0, refused=1)

    monkeypatch.setattr(planning, "program", refused)
    assert [each.phase for each in rollout(run)] == ["prefill"]


@pytest.mark.slow
def test_scores_are_planned_as_phases_need_them(monkeypatch):
    from rl4p.configuration import compose, instantiate
    from rl4p.tools.planning.abstract import abstract_run

    noted = []
    monkeypatch.setattr(
        planning, "program", lambda phase, traced, live, **_: noted.append((phase, traced))
    )
    small = ["model=scratch", "model.width=32", "model.heads=2", "mesh=single"]

    def phases(*overrides):
        noted.clear()
        config = compose([*small, *overrides])
        run = abstract_run(config, instantiate(config.mesh))
        list(planning.scoring(run))
        return [phase for phase, _ in noted]

    assert phases() == []
    assert phases("kl=fixed") == ["reference"]
    assert phases("update.minibatches=2") == ["scores"]
    served = "+teacher=served_teacher", "teacher.servers=[http://127.0.0.1:9]"
    assert phases("advantage=distill", *served) == []
    assert phases("advantage=gae", "critic=shared", "kl=fixed") == ["scores", "reference"]


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


@pytest.mark.slow
def test_devices_that_divide_experts_divide_their_products():
    """Both of two devices sort all pairs, and the products of a pair are run by one of them."""
    config = DecoderConfig(
        vocabulary=8, width=4, layers=1, heads=1, num_kv_heads=1, head_width=4, max_positions=8,
        feed_forward_width=6, experts=4, chosen_experts=2,
    )  # fmt: skip
    module = Experts(config, jnp.dtype("float32"), "grouped")
    x_BTD = jnp.ones((3, 5, 4))
    params = {"params": module.init(jax.random.key(0), x_BTD)["params"]}
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


@pytest.mark.slow
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
