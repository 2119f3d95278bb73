"""Tests that costs are the compiler's, and that advice names options which reduce them."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from rl4p.configuration.slices import GIB, Chip
from rl4p.learner.optimizer import AdamW
from rl4p.rollout.continuous import Continuous
from rl4p.rollout.naive_sampler import NaiveSampler
from rl4p.tools.planning import costs
from rl4p.tools.planning.costs import (
    Cost,
    advice,
    axes_of,
    bound_of_step,
    cost,
    unit_of,
    wider_sampling,
)
from rl4p.tools.planning.hlo import Collective
from rl4p.tools.planning.programs import Program, program
from tests.support.plans import FSDP, INNER, KERNELS, MICROBATCHES, TP, WIDTH

# The small run on eight devices.


@pytest.mark.slow
def test_parameters_are_gathered_layer_by_layer_and_again_in_the_backward(small):
    gathered = small["costs"]["update"]["collectives"]["all-gather over fsdp"]
    expected = 2 * MICROBATCHES * KERNELS * 4 / TP
    assert gathered["bytes"] == pytest.approx(expected, rel=0.05)
    assert gathered["sent"] == pytest.approx(expected * (FSDP - 1) / FSDP, rel=0.05)


@pytest.mark.slow
def test_their_gradients_are_added_up_into_the_parts(small):
    scattered = small["costs"]["update"]["collectives"]["reduce-scatter over fsdp"]
    embedding = 264 * WIDTH * 4 / TP
    expected = MICROBATCHES * (KERNELS * 4 / TP + embedding)
    assert scattered["bytes"] == pytest.approx(expected, rel=0.05)


@pytest.mark.slow
def test_a_phase_holds_what_the_run_keeps_beside_its_arguments(small):
    costs = small["costs"]
    parameters = 4 * (KERNELS + 264 * WIDTH)
    sampling_shardings, state = parameters / TP, 3 * parameters / TP / FSDP  # two moments
    assert costs["weights"]["outputs"] == pytest.approx(sampling_shardings, rel=0.02)
    assert costs["weights"]["total"] == pytest.approx(
        sampling_shardings + state + costs["weights"]["temporaries"], rel=0.02
    )
    # Norms are replicated; a prefill needs only keys and values of the last layer.
    unread = 4 * (2 * WIDTH * WIDTH + 3 * WIDTH * INNER) / TP
    assert costs["prefill"]["beside"] == pytest.approx(state + unread, rel=0.05)
    decode = costs["decode"]
    assert decode["beside"] >= state  # and the cache of the prompts
    for each in costs.values():
        memory = each["beside"] + each["arguments"] + each["outputs"] + each["temporaries"]
        assert each["total"] == memory - each["aliased"]


# A single program on a single device.

N = 64
CHIP = Chip(platform="tpu", kind="a chip", memory=1, flops=1e6, bandwidth=1e4)
TWO = SimpleNamespace(devices=SimpleNamespace(shape={"dp": 2, "fsdp": 1, "tp": 1}), size=2)


def make(**options):
    """Returns the program x + x w, which donates x: N x N numbers of four bytes each."""
    x = jax.ShapeDtypeStruct((N, N), jnp.float32)
    step = jax.jit(lambda x, w: x + x @ w, donate_argnums=0)
    return program("update", step.trace(x, x), [x] * 5, **options)


def test_a_program_costs_what_the_compiler_says():
    found = cost(make(), CHIP, TWO)
    array = N * N * 4
    assert (found.arguments, found.outputs, found.aliased) == (2 * array, array, array)
    assert found.beside == 3 * array  # of five live arrays, two are arguments
    assert found.total == 3 * array + 2 * array + array + found.temporaries - array
    assert found.flops == 2 * N**3
    assert found.phase == "update"
    assert found.collectives == {}
    assert found.compile_seconds > 0


def test_the_bound_is_the_slower_of_products_and_bytes():
    products, read = 2 * N**3 / 2, 2 * N * N * 4  # half the products, and both arguments once
    assert cost(make(), CHIP, TWO).seconds_at_least == max(products / 1e6, read / 1e4) == read / 1e4
    slow = Chip(platform="tpu", kind="a chip", flops=1e3, bandwidth=1e4)
    assert cost(make(), slow, TWO).seconds_at_least == products / 1e3
    assert cost(make(read=1e9), CHIP, TWO).seconds_at_least == 1e9 / 1e4
    unknown = Chip(platform="cpu", kind="cpu")
    assert cost(make(), unknown, TWO).seconds_at_least is None


def test_the_network_is_as_slow_as_the_axis_that_sends_most(monkeypatch):
    def sent(over, size, group):
        return Collective(kind="all-gather", bytes=size, group=group, times=3, name=over)

    shape = {"dp": 2, "fsdp": 1, "tp": 2}
    four = SimpleNamespace(devices=SimpleNamespace(shape=shape), size=4, topology=None)
    both = [sent("tp", 4e6, (0, 1)), sent("dp", 2e6, (0, 2)), sent("dp", 6e6, (0, 2))]
    monkeypatch.setattr(costs, "collectives", lambda text, iterations: both)
    chip = Chip(platform="tpu", kind="a chip", flops=1e15, bandwidth=1e15, network=1e6)
    found = cost(make(), chip, four)
    assert found.seconds["network"] == 3 * 8e6 / 2 / 1e6  # half of each array, over dp
    assert max(found.seconds, key=lambda part: found.seconds[part]) == "network"
    assert found.seconds_at_least == 12.0
    assert "network" not in cost(make(), CHIP, four).seconds
    far = replace(chip, latency=0.5)  # a hop of each of the six gathers over dp, and of three
    assert cost(make(), far, four).seconds["network"] == 12.0 + 6 * 0.5
    twice = replace(make(), times=2)
    assert cost(twice, far, four).seconds["network"] == 2 * (12.0 + 6 * 0.5)
    assert cost(twice, far, four).flops == 2 * cost(make(), far, four).flops


def test_a_step_is_bounded_by_all_its_programs_and_names_the_longest():
    parts = [
        made("decode", products=1.0, memory=5.0, network=0.5),
        made("update", products=3.0, memory=1.0, network=2.0),
    ]
    bound = partial(bound_of_step, tokens=16_000, chips=2)
    assert bound(parts, wider=None, recomputes=True) == (
        "A step takes at least 8.00 s: at most 1,000 response tokens/s on each chip. The longest "
        "part is decode, by its memory (5.00 s). Shorter with: more sequences at a time, which "
        "share each read of the parameters, or more chips."
    )
    wider = bound(parts, wider=8, recomputes=True)
    assert wider is not None
    assert "Shorter with: mesh.sampling_tp=8, with which a device reads fewer parameters, more" in (
        wider
    )
    parts[1] = made("update", products=9.0)
    other = bound(parts, wider=8, recomputes=False)
    assert other is not None
    assert other.endswith("(9.00 s). Shorter with: more chips, or fewer tokens a step.")
    assert bound([*parts, made("scores")], wider=None, recomputes=True) is None


@pytest.mark.parametrize(
    ("phase", "pole", "named"),
    [
        *(("update", "products", True), ("gradient", "products", True)),
        *(("update", "network", False), ("decode", "products", False)),
    ],
)
def test_an_update_of_products_is_shorter_if_layers_are_not_recomputed(phase, pole, named):
    longest = made(phase, **({"products": 1.0} | {pole: 9.0}))
    sentence = bound_of_step([longest], tokens=1, chips=1, wider=None, recomputes=True)
    assert sentence is not None
    words = "Shorter with: model.remat=elementwise, if it fits, which recomputes little, more chips"
    assert (words in sentence) == named


@pytest.mark.parametrize(("tp", "heads", "wider"), [(1, 16, 8), (2, 28, 8), (8, 16, None)])
def test_the_widest_sampling_divides_the_devices_and_the_model(tp, heads, wider):
    sizes = {"heads": heads, "vocabulary": 1600, "feed_forward": 320, "num_kv_heads": 2}
    mesh = SimpleNamespace(size=8, devices_per_row=tp)
    decoder = SimpleNamespace(config=SimpleNamespace(dimensions=sizes))
    policy = SimpleNamespace(decoder=decoder, sampling_mesh=mesh)
    assert wider_sampling(SimpleNamespace(policy=policy)) == wider


def made(phase, **seconds):
    return Cost(
        phase=phase,
        temporaries=0,
        beside=0,
        total=0,
        flops=0.0,
        seconds=seconds,
        seconds_at_least=max(seconds.values(), default=None),
        compile_seconds=0.0,
    )


def test_what_is_beside_is_never_less_than_nothing():
    x = jax.ShapeDtypeStruct((N, N), jnp.float32)
    made = program("update", jax.jit(lambda x: x * 2).trace(x), [])
    assert cost(made, CHIP, TWO).beside == 0


@pytest.mark.parametrize(
    ("live", "arguments", "refused", "temporaries", "total"),
    [
        (100, 0, 7, 7, 107),
        (100, 60, 80, 20, 120),  # the compiler counts the arguments, and not the arrays beside
        (100, 100, 174, 74, 174),
        (100, 100, 100, 0, 100),
        (100, 60, 40, 0, 100),  # no program has less than its arguments
    ],
)
def test_a_program_that_was_refused_costs_what_it_asked_for(
    live, arguments, refused, temporaries, total
):
    made = Program(
        phase="decode",
        traced=make().traced,
        compiled=None,
        live=live,
        arguments=arguments,
        refused=refused,
        seconds=2.0,
    )
    found = cost(made, CHIP, TWO)
    assert (found.total, found.beside) == (total, live - arguments)
    assert (found.arguments, found.temporaries) == (arguments, temporaries)
    assert (found.outputs, found.aliased) == (0, 0)
    assert found.flops == 2 * N**3
    assert (found.seconds_at_least, found.compile_seconds) == (None, 2.0)


@pytest.mark.parametrize(
    ("platform", "peak", "temporaries"),
    [
        ("tpu", 155, 65),  # of 99 bytes of temporaries, 65 are in memory at a time
        ("tpu", 90, 0),
        ("tpu", 0, 99),  # the compiler does not know it
        ("gpu", 155, 99),  # all temporaries are one block
        ("cpu", 155, 99),
    ],
)
def test_a_program_of_a_tpu_takes_its_peak(platform, peak, temporaries):
    made = make()
    memory = SimpleNamespace(
        argument_size_in_bytes=90,
        output_size_in_bytes=70,
        alias_size_in_bytes=70,
        temp_size_in_bytes=99,
        peak_memory_in_bytes=peak,
    )
    compiled = SimpleNamespace(
        memory_analysis=lambda: memory, as_text=lambda: made.compiled.as_text()
    )
    found = cost(replace(made, compiled=compiled, live=100), replace(CHIP, platform=platform), TWO)
    assert found.temporaries == temporaries
    assert found.total == 10 + 90 + temporaries


@pytest.mark.parametrize(
    ("size", "unit"),
    [
        (GIB, ("GiB", GIB)),
        (GIB / 10, ("GiB", GIB)),
        (GIB / 10 - 1, ("MiB", GIB // 1024)),
        (0, ("MiB", GIB // 1024)),
    ],
)
def test_sizes_are_written_in_a_unit_of_their_own_order(size, unit):
    assert unit_of(size) == unit


@pytest.mark.parametrize(
    ("group", "axes"),
    [((0, 1), "tp"), ((0, 2, 4, 6), "fsdp"), ((0, 8), "dp"), ((0, 3), "fsdp x tp"), ((0,), "")],
)
def test_devices_of_a_group_differ_along_axes(group, axes):
    assert axes_of(group, {"dp": 2, "fsdp": 4, "tp": 2}) == axes


# Advice.


def costing(phase, total, temporaries=0):
    fields = dict.fromkeys(("arguments", "outputs", "aliased", "beside", "largest_loop_copy"), 0)
    return Cost(
        phase=phase,
        total=total,
        temporaries=temporaries,
        flops=0.0,
        collectives={},
        seconds_at_least=None,
        compile_seconds=0.0,
        **fields,
    )


def run(
    *,
    remat="layer",
    optimizer=None,
    rollout=None,
    tokens=1024,
    sequences=64,
    platform="gpu",
    topology=None,
):
    optimizer = optimizer or AdamW()
    decoder, sampling_mesh = SimpleNamespace(remat=remat), SimpleNamespace(row_shards=2)
    return SimpleNamespace(
        mesh=SimpleNamespace(size=4, platform=platform, topology=topology, column_shards=1),
        can_offload=platform != "cpu" and getattr(optimizer, "offload", None) is False,
        optimizer=optimizer,
        policy=SimpleNamespace(decoder=decoder, sampling_mesh=sampling_mesh),
        phases=SimpleNamespace(
            update=SimpleNamespace(tokens_per_microbatch=tokens),
            rollout=rollout or Continuous(max_response_tokens=16),
        ),
        response_tokens=16,
        sequences=sequences,
    )


@pytest.mark.parametrize(
    ("options", "costs", "change"),
    [
        # The arrays that outlast the update are too large: its moments, or too few chips.
        ({}, [("update", 150, 20)], "optimizer.offload=true, or 6 chips like these"),
        (
            {"topology": "h100:4"},
            [("update", 150, 20)],
            "optimizer.offload=true (planned with estimate=true), or 6 chips like these",
        ),
        (
            {"platform": "cpu"},
            [("update", 150, 20)],
            "optimizer.moment_dtype=bfloat16, or 6 chips like these",
        ),
        (
            {"optimizer": AdamW(offload=True)},
            [("optimizer", 150, 20)],
            "optimizer.moment_dtype=bfloat16, or 6 chips like these",
        ),
        (
            {"optimizer": AdamW(offload=True), "remat": "none"},
            [("gradient", 150, 100)],
            "model.remat=layer",
        ),
        ({"optimizer": "one without moments"}, [("update", 150, 20)], "6 chips like these"),
        (
            {"optimizer": AdamW(moment_dtype="bfloat16", offload=True)},
            [("update", 101, 0)],
            "5 chips like these",
        ),
        # The temporaries are too large: first recompute more, then use smaller microbatches.
        ({"remat": "none"}, [("update", 150, 100)], "model.remat=layer"),
        ({"remat": "elementwise"}, [("update", 150, 100)], "model.remat=layer"),
        ({"remat": "none"}, [("scores", 150, 100)], "update.tokens_per_microbatch=512"),
        ({}, [("update", 150, 100)], "update.tokens_per_microbatch=512"),
        ({}, [("update", 149, 100)], "update.tokens_per_microbatch=512"),
        ({}, [("update", 151, 100)], "update.tokens_per_microbatch=256"),
        ({}, [("reference", 450, 400)], "update.tokens_per_microbatch=128"),
        ({"tokens": 32}, [("update", 150, 100)], "update.tokens_per_microbatch=16"),
        ({"tokens": 16}, [("update", 150, 100)], "6 chips like these"),
        # The size of a sampler's cache depends on its slots.
        ({}, [("decode", 200, 0)], "rollout.slots=32"),
        ({}, [("arrange", 201, 0)], "rollout.slots=16"),
        ({"sequences": 16}, [("decode", 200, 0)], "8 chips like these"),
        (
            {"rollout": Continuous(max_response_tokens=16, slots=32)},
            [("decode", 200, 0)],
            "rollout.slots=16",
        ),
        (
            {"rollout": Continuous(max_response_tokens=16, slots=999)},
            [("decode", 200, 0)],
            "rollout.slots=32",
        ),
        ({"rollout": NaiveSampler(max_response_tokens=16)}, [("decode", 200, 0)], "8 chips like"),
        ({}, [("prefill", 200, 0)], "8 chips like these"),
        # The largest program determines the advice.
        ({}, [("update", 150, 100), ("decode", 200, 0)], "rollout.slots=32"),
        ({}, [("update", 250, 200), ("decode", 200, 0)], "update.tokens_per_microbatch=256"),
    ],
    ids=str,
)
def test_advice_is_the_change_that_helps_the_largest_program(options, costs, change):
    found = advice(run(**options), [costing(*each) for each in costs], 100.0)
    assert found.startswith(change)
