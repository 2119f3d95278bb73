import pytest

from rl4p.tools.planning.costs import axes_of
from rl4p.tools.planning.hlo import collectives, first_group, largest_loop_copy

SCRIPT = """
import json, jax, jax.numpy as jnp
from dataclasses import asdict
from functools import partial
from jax.sharding import PartitionSpec as P
from rl4p.base.types import Microbatching
from rl4p.learner.microbatches import fold
from rl4p.tools.planning.hlo import collectives, largest_loop_copy

mesh = jax.make_mesh((4, 2), ("a", "b"), (jax.sharding.AxisType.Auto,) * 2)

def read(function, *arguments, iterations=1):
    text = jax.jit(function).lower(*arguments).compile().as_text()
    found = [asdict(c) | {"sent": c.sent} for c in collectives(text, iterations)]
    return found, text

def on_each(function, specs, out):
    return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False)

def scanned(x, w):
    def turn(x, _):
        whole = jax.lax.all_gather(w, "a", axis=0, tiled=True)  # 8 x 8, of four
        return jnp.tanh(x @ (whole * jnp.sum(x))), None
    return jax.lax.scan(turn, x, None, length=5)[0]

def other(x):
    parts = jax.lax.psum_scatter(x, "a", scatter_dimension=0, tiled=True)
    return jax.lax.psum(parts, "b"), jax.lax.ppermute(x, "b", [(0, 1), (1, 0)])

def unknown(x):
    return jax.lax.while_loop(
        lambda x: jnp.sum(x) < 1e9, lambda x: jax.lax.psum(x * 2, "b") + 1, x
    )

def microbatches(x, ids):
    def add(total, part, rows):
        return total + jax.lax.psum(jnp.sum(part * total), "a")
    return fold(add, jnp.float32(1), x, ids, Microbatching(tokens=256))

x8, w = jnp.ones((8, 8)), jnp.ones((8, 8))
f = on_each(scanned, (P(), P("a")), P())
found = {"scan": read(f, jnp.ones((8, 8)), jnp.ones((8, 8)))[0]}
found["kinds"] = read(on_each(other, P(), (P("a"), P())), jnp.ones((32, 8)))[0]
found["unknown"] = read(on_each(unknown, P(), P()), jnp.ones((4, 4)), iterations=9)[0]
rows = jnp.ones((12, 128)), jnp.ones((12, 128), jnp.int32)
found["fold"] = read(on_each(microbatches, P(), P()), *rows)[0]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(on_eight):
    return on_eight(SCRIPT)


def only(found, kind):
    (one,) = (each for each in found if each["kind"] == kind)
    return one


@pytest.mark.slow
def test_what_a_scan_gathers_is_gathered_at_every_turn(found):
    gathered = only(found["scan"], "all-gather")
    assert (len(gathered["group"]), gathered["bytes"]) == (4, 8 * 8 * 4)
    assert gathered["times"] in (1, 5)  # the compiler may move it out of the loop
    assert gathered["sent"] == gathered["times"] * 8 * 8 * 4 * 3 / 4


def test_each_kind_is_known_with_its_devices_and_bytes(found):
    scattered = only(found["kinds"], "reduce-scatter")
    assert (len(scattered["group"]), scattered["bytes"]) == (4, 32 * 8 * 4)
    reduced = only(found["kinds"], "all-reduce")
    assert (len(reduced["group"]), reduced["bytes"]) == (2, 8 * 8 * 4)
    assert reduced["sent"] == 2 * 8 * 8 * 4 / 2
    assert only(found["kinds"], "collective-permute")["sent"] == 32 * 8 * 4


def test_a_loop_of_which_nobody_knows_turns_as_often_as_the_caller_says(found):
    assert only(found["unknown"], "all-reduce")["times"] == 9


def test_microbatches_are_as_many_as_rows_of_the_full_width_make(found):
    """128 columns and 256 tokens: two of twelve rows at a time; the narrower loops do not run."""
    times = [each["times"] for each in found["fold"]]
    assert times == [6]


ASYNCHRONOUS = """HloModule jit_f

%body (p: (f32[8,128])) -> (f32[8,128]) {
  %p = (f32[8,128]{1,0:T(8,128)}) parameter(0)
  %x = f32[8,128]{1,0:T(8,128)} get-tuple-element(%p), index=0
  %copy.1 = f32[8,128]{1,0:T(8,128)} copy(%x)
  %start = (bf16[2,128]{1,0}, bf16[8,128]{1,0}) all-gather-start(%x), replica_groups={{0,1,2,3}}, dimensions={0}
  %done = bf16[8,128]{1,0} all-gather-done(%start)
  ROOT %t = (f32[8,128]{1,0}) tuple(%copy.1)
}

%cond (p: (f32[8,128])) -> pred[] {
  ROOT %c = pred[] constant(true)
}

ENTRY %main (x: f32[8,128]) -> (f32[8,128]) {
  %x = f32[8,128]{1,0} parameter(0)
  %copy.2 = f32[16,128]{1,0} copy(%x)
  %t = (f32[8,128]{1,0}) tuple(%x)
  ROOT %w = (f32[8,128]{1,0}) while(%t), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"7"}}
}
"""  # noqa: E501


def test_what_only_starts_counts_once_and_by_its_result():
    (gathered,) = collectives(ASYNCHRONOUS)
    assert (gathered.times, gathered.bytes, len(gathered.group)) == (7, 8 * 128 * 2, 4)


STARTED = """HloModule jit_f

ENTRY %main (x: f32[8,64]) -> f32[8,64] {{
  %x = f32[8,64]{{1,0}} parameter(0)
  %start = {shapes} {kind}-start(%x), replica_groups={{{{0,1,2,3}}}}
  ROOT %done = f32[8,64]{{1,0}} {kind}-done(%start)
}}
"""


@pytest.mark.parametrize(
    ("kind", "shapes", "size"),
    [
        (  # of a GPU: two arrays at once
            "reduce-scatter",
            "((f32[8,64]{1,0}, f32[4,4]{1,0}), (f32[2,64]{1,0}, f32[1,4]{1,0}))",
            4 * (8 * 64 + 4 * 4),
        ),
        ("reduce-scatter", "(f32[8,64]{1,0}, f32[2,64]{1,0})", 4 * 8 * 64),
        ("all-gather", "((bf16[2,64]{1,0}, bf16[1]{0}), (bf16[8,64]{1,0}, bf16[4]{0}))", 2 * 516),
        ("all-gather", "(bf16[2,64]{1,0}, bf16[8,64]{1,0}, u32[], u32[])", 2 * 8 * 64),
        ("collective-permute", "(f32[8,64]{1,0}, f32[8,64]{1,0}, u32[], u32[])", 4 * 8 * 64),
        ("all-reduce", "(f32[8,64]{1,0}, f32[4]{0})", 4 * (8 * 64 + 4)),
    ],
)
def test_what_starts_has_its_arguments_among_its_results(kind, shapes, size):
    (found,) = collectives(STARTED.format(kind=kind, shapes=shapes))
    assert (found.kind, found.bytes) == (kind, size)


FUSED = """HloModule jit_f

%all-reduce-scatter.1 (input: f32[3584,64]) -> f32[960,64] {
  %input = f32[3584,64]{1,0} parameter(0)
  %pad = f32[3840,64]{1,0} pad(%input), padding=0_256x0_0
  %all-reduce.1 = f32[3840,64]{1,0} all-reduce(%pad), replica_groups={{0,4,8,12},{1,5,9,13}}
  ROOT %slice = f32[960,64]{1,0} dynamic-slice(%all-reduce.1), dynamic_slice_sizes={960,64}
}

ENTRY %main (x: f32[3584,64]) -> f32[960,64] {
  %x = f32[3584,64]{1,0} parameter(0)
  ROOT %fusion = f32[960,64]{1,0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1
}
"""


def test_an_all_reduce_with_its_slice_is_a_reduce_scatter():
    (scattered,) = collectives(FUSED)
    assert (scattered.kind, scattered.bytes) == ("reduce-scatter", 3840 * 64 * 4)
    assert scattered.sent == 3840 * 64 * 4 * 3 / 4
    (reduced,) = collectives(FUSED.replace("all-reduce-scatter", "fused_computation"))
    assert (reduced.kind, reduced.sent) == ("all-reduce", 2 * scattered.sent)


def test_a_loop_in_a_loop_runs_as_often_as_both_say():
    inner = "ROOT %w = (f32[8,128]{1,0}) while(%t), condition=%cond, body=%body"
    turns = ', backend_config={"known_trip_count":{"n":"7"}}'
    nested = f"""%outer (t: (f32[8,128])) -> (f32[8,128]) {{
  %t = (f32[8,128]{{1,0}}) parameter(0)
  {inner}{turns}
}}

"""
    text = ASYNCHRONOUS.replace("body=%body", "body=%outer").replace('"n":"7"', '"n":"3"')
    (gathered,) = collectives(text.replace("ENTRY", nested + "ENTRY"))
    assert gathered.times == 21


def test_copies_count_in_loops_alone():
    assert largest_loop_copy(ASYNCHRONOUS) == 8 * 128 * 4
    called = """%called (p: f32[8,128]) -> f32[32,128] {
  %p = f32[8,128]{1,0} parameter(0)
  ROOT %copy.3 = f32[32,128]{1,0} copy(%p)
}

"""
    call = "  %copy.2 = f32[32,128]{1,0} call(%x), to_apply=%called"
    text = ASYNCHRONOUS.replace("  %copy.2 = f32[16,128]{1,0} copy(%x)", call)
    assert largest_loop_copy(text.replace("ENTRY", called + "ENTRY")) == 8 * 128 * 4


def test_a_loop_without_the_compilers_word_counts_to_its_constant():
    text = ASYNCHRONOUS.replace(', backend_config={"known_trip_count":{"n":"7"}}', "").replace(
        "  ROOT %c = pred[] constant(true)",
        "  %n = s32[]{:T(128)} constant(5)\n  %i = s32[] get-tuple-element(%p), index=0\n"
        "  ROOT %lt.1 = pred[]{:T(512)} compare(%i, %n), direction=LT",
    )
    (gathered,) = collectives(text, iterations=3)
    assert gathered.times == 5
    (gathered,) = collectives(text.replace("compare(%i, %n)", "compare(%n, %i)"), iterations=3)
    assert gathered.times == 3  # the count is not known


@pytest.mark.parametrize(
    ("groups", "first", "axes"),
    [
        ("replica_groups={{0,1},{2,3},{4,5},{6,7}}", (0, 1), "tp"),
        ("replica_groups={{0,2,4,6},{1,3,5,7}}", (0, 2, 4, 6), "fsdp"),
        ("replica_groups=[4,2]<=[8]", (0, 1), "tp"),
        ("replica_groups=[2,4]<=[4,2]T(1,0)", (0, 2, 4, 6), "fsdp"),
        ("replica_groups=mesh['a'=4,'b'=2] {'a'}", (0, 2, 4, 6), "fsdp"),
        ("replica_groups=[1,8]<=[8]", tuple(range(8)), "fsdp x tp"),
        ("source_target_pairs={{0,2},{2,4},{4,6},{6,0}}", (0, 2), "fsdp"),
    ],
)
def test_a_group_lies_along_axes_of_the_mesh(groups, first, axes):
    """The mesh has dp 1, fsdp 4 and tp 2."""
    assert first_group(f"%x = f32[8] all-gather(%y), {groups}, dimensions={{0}}") == first
    assert axes_of(first, {"dp": 1, "fsdp": 4, "tp": 2}) == axes
