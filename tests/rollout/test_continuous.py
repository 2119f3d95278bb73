import dataclasses
import gc
import math
import os
import re
import subprocess
import sys
from collections import deque

import jax
import numpy as np
import pytest

from rl4p.engine import batch as batches
from rl4p.engine import speculation
from rl4p.engine.cache import prefill
from rl4p.engine.decode import Outcome, decode
from rl4p.loop.checks import check_trajectories
from rl4p.rollout.continuous import Continuous
from rl4p.rollout.naive_sampler import NaiveSampler

R = 72


@pytest.fixture(scope="module")
def ending(policy):
    """One token in 44 ends a response: some are short, some are cut at R."""
    return dataclasses.replace(policy, end_ids=tuple(range(0, 264, 44)))


@pytest.fixture
def turns(monkeypatch):
    """How many slots each compiled chunk decoded, how often, and its cache."""
    seen = []

    def counted(decoder, params, cache, state, *args, **kwargs):
        before = np.asarray(state.drawn_n).sum()
        cache, packed, drawn = decode(decoder, params, cache, state, *args, **kwargs)
        added = Outcome.of(packed).drawn_n.sum() - before
        seen.append((len(state.drawn_n), int(added), cache.positions_BS.shape[1]))
        return cache, packed, drawn

    monkeypatch.setattr(batches, "decode", counted)
    return seen


def assert_same(ours, theirs):
    """Checks that tokens, masks and positions are equal, and log-probabilities up to rounding."""
    ours, theirs = (jax.device_get(x) for x in (ours, theirs))
    for name in (field.name for field in dataclasses.fields(ours)):
        a, b = (np.asarray(getattr(x, name)) for x in (ours, theirs))
        assert a.dtype == b.dtype
        if name == "behaviour_logprobs_BT":
            np.testing.assert_allclose(a, b, atol=1e-5)
        else:
            np.testing.assert_array_equal(a, b, err_msg=name)


QUICK = [(13, 0)]  # the other cases are slow tests


@pytest.mark.parametrize(
    ("slots", "seed"),
    [
        pytest.param(slots, seed, marks=() if (slots, seed) in QUICK else pytest.mark.slow)
        for slots in (None, 1, 8, 13)
        for seed in (0, 1)
    ],
)
def test_the_tokens_are_those_of_the_naive_sampler(sample, slots, seed):
    options = {"max_response_tokens": R, "temperature": 0.9, "top_k": 200, "top_p": 0.95}
    ours, our_episodes = sample(Continuous(**options, slots=slots), group_size=8, seed=seed)
    theirs, their_episodes = sample(NaiveSampler(**options), group_size=8, seed=seed)
    check_trajectories(ours)
    assert_same(ours, theirs)
    assert our_episodes == their_episodes
    lengths = ours.response_mask_BT.sum(axis=1)
    assert lengths.min() < 8
    assert lengths.max() == R


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"greedy": True, "group_size": 8}, marks=pytest.mark.slow),
        pytest.param({"group_size": 3}, marks=pytest.mark.slow),
        pytest.param({"group_size": 1}, marks=pytest.mark.slow),
    ],
)
def test_greedy_answers_and_other_group_sizes_are_the_same_too(sample, options):
    ours, _ = sample(Continuous(max_response_tokens=R), **options)
    theirs, _ = sample(NaiveSampler(max_response_tokens=R), **options)
    assert_same(ours, theirs)


@pytest.mark.slow
def test_temperature_zero_is_greedy(sample):
    ours, _ = sample(Continuous(max_response_tokens=R, temperature=0.0), group_size=1)
    theirs, _ = sample(Continuous(max_response_tokens=R), group_size=1, greedy=True)
    assert_same(ours, theirs)


@pytest.mark.slow
def test_slots_are_given_up_as_sequences_end_and_the_cache_grows(sample, turns):
    ours, _ = sample(Continuous(max_response_tokens=R), group_size=8)
    sizes, places = [n for n, *_ in turns], [places for *_, places in turns]
    assert sizes == sorted(sizes, reverse=True)
    assert (sizes[0], sizes[-1]) == (32, 8)
    assert set(sizes) == {32, 16, 8}
    assert places == sorted(places)
    assert (places[0], places[-1]) == (16 + 64, 16 + R)
    assert sum(added for _, added, _ in turns) == ours.response_mask_BT.sum()


@pytest.mark.slow
def test_waiting_sequences_take_the_slots_of_those_that_end(sample, turns):
    """Never more than 8 at a time, and within 1.15 of the least number of turns."""
    ours, _ = sample(Continuous(max_response_tokens=R, slots=8), group_size=64)
    lengths = np.asarray(ours.response_mask_BT.sum(axis=1))
    assert {n for n, *_ in turns} == {8}
    # A turn decodes one token of every slot that is taken: the slots are full but at the end.
    least = max(lengths.max(), lengths.sum() / 8)
    assert turns_of(turns, lengths) <= 1.15 * least


def turns_of(turns, lengths):
    """Turns of the loop: replayed from the lengths, since the device does not count them."""
    running, queue, count = [], deque(lengths.tolist()), 0
    for _, added, _ in turns:
        while queue and len(running) < 8:
            running.append(queue.popleft())
        while added > 0:
            added -= len(running)
            running = [left - 1 for left in running]
            running = [left for left in running if left]
            count += 1
        assert added == 0
    assert not running
    assert not queue
    return count


@pytest.mark.slow
def test_few_programs_serve_all_lengths(sample):
    """Two numbers of slots, 16 and 8, by two sizes of the cache."""
    sampler = Continuous(max_response_tokens=R, slots=16, top_k=7)
    before = decode._cache_size()
    for seed in range(12):
        sample(sampler, group_size=8, seed=seed)
    assert decode._cache_size() - before <= 4


@pytest.mark.slow
@pytest.mark.parametrize("slots", [None, pytest.param(8, marks=pytest.mark.slow)])
def test_each_prompt_is_prefilled_once_for_its_group(sample, prompts, monkeypatch, slots):
    """Four rows of 16 columns go in and come out, however many samples each prompt has.

    The first decode step reads the last token, so that a layer's state reads it once.
    """
    seen = []

    def spy(decoder, params, tokens_PT, padding_P, lengths_P, mesh):
        prefilled = prefill(decoder, params, tokens_PT, padding_P, lengths_P, mesh)
        ends = [n + m for n, m in zip(padding_P, lengths_P, strict=True)]
        rows = [
            x[begin:end].tolist() for x, begin, end in zip(tokens_PT, padding_P, ends, strict=True)
        ]
        seen.append((rows, set(ends), {x.shape[0] for x in jax.tree.leaves(prefilled)}))
        return prefilled

    monkeypatch.setattr(batches.programs, "prefill", spy)
    sample(Continuous(max_response_tokens=R, slots=slots), group_size=8)
    assert seen == [([list(prompt.tokens[:-1]) for prompt in prompts], {15}, {4})]


def test_a_prefill_runs_no_more_tokens_than_the_prompts_have(policy, params):
    """Its program multiplies [4 x 16, 32] by the up projection's [32, 48], and nothing larger."""
    arrays = np.ones((4, 16), np.int32), np.zeros(4, np.int32), np.full(4, 16, np.int32)
    given = policy.for_sampling(params)
    program = str(
        jax.make_jaxpr(lambda *x: prefill(policy.decoder, *x, policy.mesh))(given, *arrays)
    )
    rows = {int(n) for n in re.findall(r"f32\[(\d+),16,48\] = dot_general", program)}
    assert rows == {4}


def loop_of(program):
    """The condition and the body of the largest loop of a compiled program, line by line."""
    # Copies that XLA inserts do not name the loop: what stands in its computations counts.
    computation = re.compile(r"^%(\S+) [^\n]*{\n(.*?)^}", re.MULTILINE | re.DOTALL)
    computations = dict(computation.findall(program))
    loops = re.findall(r" while\(.*condition=%(\S+), body=%(\S+?),", program)
    condition, body = max(loops, key=lambda loop: len(computations[loop[1]]))
    condition, body = (
        [line.strip() for line in computations[name].splitlines()] for name in (condition, body)
    )
    assert len(body) > 50
    return condition, body


def compiled_loops(environment, *names):
    command = [sys.executable, "-c", DECODE, *names]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    programs = done.stdout.split("-- next --")
    return dict(zip(names, map(loop_of, programs), strict=True))


@pytest.fixture(scope="module")
def decode_text(on_devices):
    """The compiled decode loop of two devices: 24 slots, and a cache of 48 places."""
    return compiled_loops(on_devices(2), "continuous")["continuous"]


@pytest.fixture(scope="module")
def loops_of_users():
    """Those of both samplers as users run them, without the flags that make tests compile soon."""
    environment = {name: x for name, x in os.environ.items() if name != "XLA_FLAGS"}
    return compiled_loops(environment, "continuous", "naive")


DECODE = """
import sys
import jax, numpy as np
from rl4p.distributed.mesh import Mesh
from rl4p.model.scratch import Scratch
from rl4p.engine.cache import place, prefill
from rl4p.engine.decode import decode
from rl4p.engine.decode import SharedDistribution
from rl4p.engine.sequence import Slots
from rl4p.rollout.naive_sampler import StaticBatch, generate
from rl4p.base.types import Sampling

mesh, n = Mesh(), 24
model = Scratch(width=32, layers=2, heads=4, num_kv_heads=2)
rows = np.arange(n, dtype=np.int32)
arrays = Slots(n).state, Slots(n).constants
if mesh.size == 1:  # shapes will do
    policy, params = model.abstract(mesh)
    params = jax.eval_shape(policy.for_sampling, params)
    cache = jax.eval_shape(lambda: policy.decoder.empty_cache(n, 48))
else:
    policy, params = model.build(mesh, jax.random.key(0))
    params = policy.for_sampling(params)
    prompts = np.ones((3, 16), np.int32), rows[:3], rows[:3]
    prefilled = prefill(policy.decoder, params, *prompts, mesh)
    cache = place(None, prefilled, mesh.shard_rows(rows // 8), 48, mesh)
    arrays = mesh.shard_rows(arrays)
distribution = SharedDistribution(sampling=Sampling(), greedy=False)
lowered = {
    "continuous": lambda: decode.lower(
        policy.decoder, params, cache, *arrays, distribution, 32, 0, extras=False, mesh=mesh
    ),
    "naive": lambda: generate.lower(
        policy.decoder, 32, policy.end_ids, params, np.ones((n, 16), np.int32),
        np.ones((n, 16), bool), StaticBatch.empty(n), distribution,
    ),
}
print(*(lowered[name]().compile().as_text() for name in sys.argv[1:]), sep="-- next --")
"""


def largest_copy(lines):
    """In numbers, of copies alone or in a fusion, which is named after what it does."""
    copies = [line for line in lines if re.match(r"%\S*copy\S* = ", line)]
    shapes = [line.split("(")[0] for line in copies]
    sizes = [re.search(r"\[([\d,]+)\]", shape) for shape in shapes]
    return max((math.prod(map(int, size[1].split(","))) for size in sizes if size), default=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["continuous", "naive"])
def test_no_decode_step_copies_the_cache(loops_of_users, name):
    """Keys are [24, 2, 8, 48] and values [24, 2, 48, 8], whatever the order of their axes."""
    _, lines = loops_of_users[name]
    cache = [line for line in lines if re.search(r"f32\[24,2,(8,48|48,8)\]", line)]
    assert len(cache) >= 4  # keys and values of two layers
    assert largest_copy(lines) < 24 * 2 * 8 * 48


def test_a_copy_is_noticed_by_its_size():
    lines = [
        "%copy.3 = f32[24,2,8,48]{3,2,1,0} copy(%x)",
        "%add.1 = f32[99,99]{1,0} add(%x, %y)",
        "%copy_bitcast_fusion = f32[24]{0} fusion(%x)",
    ]
    assert largest_copy(lines) == 24 * 2 * 8 * 48
    assert largest_copy(lines[1:]) == 24
    assert largest_copy(lines[1:2]) == 0


@pytest.mark.slow
def test_in_a_turn_devices_only_tell_one_another_whether_to_go_on(decode_text):
    collectives = ("all-gather(", "all-reduce(", "all-to-all(", "collective-permute(")
    condition, body = (
        [line for line in lines if any(name in line for name in collectives)]
        for lines in decode_text
    )
    assert not body
    assert condition  # that they do tell
    assert all(re.match(r"%\S+ = s32\[\] all-reduce\(", line) for line in condition)


def test_responses_say_which_weights_drew_them(sample):
    ours, _ = sample(Continuous(max_response_tokens=R), group_size=8)
    assert set(ours.policy_version_BT[ours.response_mask_BT].tolist()) == {3}


@pytest.mark.parametrize("slots", [8, None])
def test_a_chunk_takes_the_arrays_of_the_one_before(sample, monkeypatch, slots):
    """The cache is written in place: what went into a chunk is gone behind it."""
    caches = []

    def spy(decoder, params, cache, *args, **kwargs):
        result = decode(decoder, params, cache, *args, **kwargs)
        caches.append([x.is_deleted() for x in jax.tree.leaves(cache.layers)])
        return result

    monkeypatch.setattr(batches, "decode", spy)
    sample(Continuous(max_response_tokens=R, slots=slots), group_size=8)
    assert len(caches) > 1
    assert all(all(gone) for gone in caches)


@pytest.mark.parametrize("name", ["repetition_penalty", "presence_penalty"])
def test_drafts_are_refused_where_a_penalty_ends_them(name):
    with pytest.raises(ValueError, match=f"draft_tokens has no effect with {name}"):
        Continuous(max_response_tokens=R, draft_tokens=3, **{name: 1.5})
    Continuous(max_response_tokens=R, **{name: 1.5})


@pytest.mark.slow
def test_the_metrics_of_drafts_are_those_of_the_last_call(sample, monkeypatch):
    assert Continuous(max_response_tokens=R).metrics() == {}
    none = {"rollout/tokens_per_decode_step": 1.0, "rollout/drafted": 0.0}
    sampler = Continuous(max_response_tokens=R, draft_tokens=3, slots=8)
    sample(sampler)
    assert sampler.metrics() == none  # they cannot pay for so small a policy
    monkeypatch.setattr(speculation, "TOKENS_OF_CACHED", 10**9)
    for _ in range(2):
        sample(sampler)
        assert 0 < sampler.counts.tokens <= 8 * R
        assert sampler.metrics()["rollout/tokens_per_decode_step"] >= 1


@pytest.mark.slow
def test_a_rollout_leaves_only_its_trajectories_in_memory(sample):
    """The update needs the memory of the cache, before any collection of garbage."""
    sampler = Continuous(max_response_tokens=R)
    sample(sampler, group_size=8)
    gc.collect()
    gc.disable()
    try:
        before = set(map(id, jax.live_arrays()))
        trajectories, _ = sample(sampler, group_size=8)
        left = sum(x.nbytes for x in jax.live_arrays() if id(x) not in before)
    finally:
        gc.enable()
    assert left <= sum(x.nbytes for x in jax.tree.leaves(trajectories))
