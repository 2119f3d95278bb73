"""The choice of when to speculate."""

import dataclasses
import json
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.types import Sampling
from rl4p.engine import batch as batches
from rl4p.engine import speculation
from rl4p.engine.decode import MOST_STEPS, SharedDistribution
from rl4p.engine.layout import Layout
from rl4p.engine.sequence import Slots, TokenSequence
from rl4p.engine.speculation import (
    FEW_STEPS,
    LONGEST_MATCH,
    NO_TOKEN,
    Counts,
    Speculation,
    Texts,
    agreement,
    look_up,
    parameter_tokens,
    put,
    speculate,
)
from rl4p.protocols.engine import Request
from rl4p.rollout.continuous import Continuous
from rl4p.rollout.naive_sampler import NaiveSampler
from tests.support.streams import MOST, Conversations, MeshOf

FEW_TOKENS_OF_CACHED = speculation.TOKENS_OF_CACHED  # before a fixture changes it

C = 24


def row(*tokens):
    return [*tokens, *[7] * (C - len(tokens))]  # what is behind the end must not count


def draft_of(tokens, k=4):
    return np.asarray(look_up(jnp.int32([row(*tokens)]), jnp.int32([len(tokens)]), k))[0].tolist()


@pytest.mark.parametrize(
    ("tokens", "draft"),
    [
        ((1, 2, 3, 4, 5, 6, 1, 2), [3, 4, 5, 6]),
        ((1, 2, 3, 9, 2, 4, 5, 1, 2), [3, 9, 2, 4]),  # of two tokens, although one is nearer
        ((1, 2, 3, 1, 2, 4, 8, 1, 2), [4, 8, 1, 2]),  # the later one of two that are as long
        ((1, 2, 3, 2, 3), [2, 3, 2, 3]),  # periodic
        ((6, 6, 6), [6, 6, 6, 6]),
        ((1, 2, 3, NO_TOKEN, 1, 2), [3, 0, 1, 2]),  # the text of another response ends
    ],
)
def test_a_draft_by_hand(tokens, draft):
    assert draft_of(tokens) == draft


def test_a_longer_match_counts_more_up_to_the_longest(monkeypatch):
    tokens = (5, 1, 2, 3, 8, 4, 1, 2, 3, 9, 5, 1, 2, 3)
    assert draft_of(tokens)[0] == 8
    monkeypatch.setattr(speculation, "LONGEST_MATCH", 3)
    assert draft_of(tokens)[0] == 9


def test_what_no_token_is_matches_nothing():
    """A text that ends before the match begins does not go on before it."""
    assert draft_of((1, 2, 9, NO_TOKEN, 2, 4, 8, NO_TOKEN, 2))[:2] == [4, 8]


def test_rows_have_their_own_ends():
    tokens_nC = jnp.int32([row(1, 2, 3, 1), row(4, 5, 6, 8, 5), row()])
    draft_nk = look_up(tokens_nC, jnp.int32([4, 5, 0]), 2)
    assert draft_nk[:2].tolist() == [[2, 3], [6, 8]]
    assert draft_nk.shape == (3, 2)


def test_values_are_put_in_the_columns_of_each_row_and_not_outside():
    rows_nC = put(jnp.zeros((3, 4), jnp.int32), jnp.int32([[1, 2]] * 3), jnp.int32([0, 2, 3]))
    assert rows_nC.tolist() == [[1, 2, 0, 0], [0, 0, 1, 2], [0, 0, 0, 1]]


def test_agreement_counts_the_tokens_that_drafts_would_have_given():
    """Four places in each row, at 0, 4, 8 and 12 tokens before the last two."""
    period, counting = [1, 2, 3] * 7, list(range(21))
    tokens_nC = jnp.int32([period + [0] * 3, counting + [0] * 3])
    ends_n = jnp.int32([21, 21])
    assert agreement(tokens_nC, jnp.int32([0, 21]), ends_n, 2).tolist() == [0, 0, 4]
    assert agreement(tokens_nC, jnp.int32([21, 0]), ends_n, 2).tolist() == [4, 0, 0]
    # Only places whose tokens are all from column 12 on: 19 and 15.
    assert agreement(tokens_nC, jnp.int32([12, 21]), ends_n, 2).tolist() == [0, 0, 2]
    half = [1, 2, 3, 4, 5, 6, 1, 2, 3, 9, 9]
    places = agreement(jnp.int32([half]), jnp.int32([6]), jnp.int32([10]), 2)
    assert places.tolist() == [0, 1, 0]


R = 72
LOW = 0.2  # a temperature at which the random policy repeats itself, and leaves it again


@pytest.fixture(scope="module")
def ending(policy):
    """One token in 22 ends a response."""
    return dataclasses.replace(policy, end_ids=tuple(range(0, 264, 22)))


@pytest.fixture(autouse=True)
def free(monkeypatch):
    """Steps with drafts take no longer, as if the parameters of this policy were many."""
    monkeypatch.setattr(speculation, "TOKENS_OF_CACHED", 10**9)


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


def drafted(sampler):
    return sampler.metrics().get("rollout/tokens_per_drafted_step", 0.0)


@pytest.mark.parametrize(
    ("slots", "k", "options"),
    [
        (8, 3, {"temperature": LOW}),
        pytest.param(1, 5, {"temperature": LOW}, marks=pytest.mark.slow),
        pytest.param(None, 7, {"temperature": LOW, "top_k": 9}, marks=pytest.mark.slow),
        pytest.param(13, 1, {"temperature": LOW, "top_p": 0.8}, marks=pytest.mark.slow),
        pytest.param(8, 31, {"temperature": 0.0}, marks=pytest.mark.slow),
    ],
)
def test_the_tokens_are_those_of_the_naive_sampler(sample, slots, k, options):
    """Some responses end with an end token inside a draft, and some at their limit."""
    options = {"max_response_tokens": R, **options}
    sampler = Continuous(**options, slots=slots, draft_tokens=k)
    ours, our_episodes = sample(sampler, group_size=8)
    theirs, their_episodes = sample(NaiveSampler(**options), group_size=8)
    assert_same(ours, theirs)
    assert our_episodes == their_episodes
    assert 1.5 < drafted(sampler) <= k + 1
    lengths = np.asarray(ours.response_mask_BT).sum(axis=1)
    assert lengths.max() == R
    if options["temperature"] > 0:
        assert lengths.min() < R


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_many_sequences_are_the_same(sample, prompts, seed):
    """Contexts of random tokens, of several lengths, which begin to repeat themselves."""
    random = np.random.default_rng(seed)
    contexts = [tuple(random.integers(1, 200, n).tolist()) for n in random.integers(1, 17, 24)]
    several = [dataclasses.replace(prompts[0], tokens=tokens) for tokens in contexts]
    options = {"max_response_tokens": R, "temperature": float(random.choice([0.15, LOW, 0.25]))}
    sampler = Continuous(**options, slots=16, draft_tokens=int(random.integers(1, 9)))
    ours, _ = sample(sampler, prompts=several, group_size=4, seed=seed)
    theirs, _ = sample(Continuous(**options), prompts=several, group_size=4, seed=seed)
    assert_same(ours, theirs)
    assert drafted(sampler) > 1


@pytest.mark.slow
def test_stop_strings_end_drafted_responses_too(sample):
    options = {"max_response_tokens": R, "temperature": LOW}
    _, episodes = sample(Continuous(**options), group_size=8)
    letters = Counter(x for episode in episodes for x in episode.response[20:] if x.isascii())
    options["stop"] = (letters.most_common(1)[0][0],)
    sampler = Continuous(**options, slots=8, draft_tokens=3)
    ours, ended = sample(sampler, group_size=8)
    theirs, _ = sample(Continuous(**options), group_size=8)
    assert_same(ours, theirs)
    assert drafted(sampler) > 1
    assert any(episode.response.endswith(options["stop"]) for episode in ended)


def drafts_of_calls(monkeypatch):
    """Returns the numbers of drafted tokens of later device calls."""
    calls = []

    def spy(*args, **kwargs):
        calls.append(kwargs["k"])
        return speculate(*args, **kwargs)

    monkeypatch.setattr(batches, "speculate", spy)
    return calls


@pytest.mark.slow
def test_sequences_with_a_penalty_are_drawn_without_drafts(sample, monkeypatch):
    calls = drafts_of_calls(monkeypatch)
    options = {"max_response_tokens": 40, "temperature": LOW}
    of_task = {"arithmetic": {"repetition_penalty": 1.02}}
    ours, _ = sample(Continuous(**options, tasks=of_task, slots=4, draft_tokens=3))
    theirs, _ = sample(NaiveSampler(**options, tasks=of_task))
    assert_same(ours, theirs)
    assert not calls
    sample(Continuous(**options, slots=4, draft_tokens=3))
    assert calls


@pytest.mark.slow
def test_least_tokens_end_drafts_as_long_as_they_act(sample, monkeypatch):
    calls = drafts_of_calls(monkeypatch)
    options = {"max_response_tokens": R, "temperature": LOW, "least_tokens": 30}
    ours, _ = sample(Continuous(**options, slots=8, draft_tokens=3), group_size=4)
    theirs, _ = sample(NaiveSampler(**options), group_size=4)
    assert_same(ours, theirs)
    assert calls


OWN, NOTHING = [[5, 6, 7], [9, 8, 7]], [[], []]


@pytest.fixture
def call(policy, params):
    """Decodes two sequences without a draft that is right, or with drafts that are."""
    sampled = policy.for_sampling(params)

    def call(k, *, text, columns=64, steps=16, limit=60, begun=3, greedy=True):
        slots, own = Slots(2), OWN
        slots.state.active_n[:] = True
        slots.state.token_n[:], slots.state.length_n[:] = 7, begun
        slots.constants.limit_n[:] = limit
        tokens_nC, begin_n = np.full((2, 256), NO_TOKEN, np.int32), np.zeros(2, np.int32)
        for n in range(2):
            row = [*text[n], *own[n]]
            tokens_nC[n, : len(row)], begin_n[n] = row, len(text[n])
        cache = policy.decoder.empty_cache(2, columns)
        cache = jax.tree.map(lambda x: x.copy(), cache)  # one array of zeros is several leaves
        inputs = np.int32(own), np.int32([[0, 1, 2]] * 2), np.ones((2, 3), np.int32)
        _, cache = policy.decoder.extend(sampled, *inputs, cache, 0)
        shared = SharedDistribution(sampling=Sampling(), greedy=greedy)
        arrays = cache, slots.state, slots.constants, shared, Texts(tokens_nC, begin_n)
        _, (packed, _, steps_nT) = speculate(
            policy.decoder, sampled, *arrays, steps, 0, k=k, mesh=policy.mesh
        )
        outcome = batches.Outcome.of(packed)
        tokens = [outcome.tokens_nM[n, : outcome.drawn_n[n]].tolist() for n in range(2)]
        result = {"tokens": tokens, "steps": outcome.steps, "by_tokens": np.asarray(steps_nT)}
        return SimpleNamespace(**result, active_n=outcome.active_n)

    return call


@pytest.mark.slow
def test_a_step_gives_the_right_part_of_a_draft_and_the_next_token(call):
    whole = call(3, text=NOTHING, limit=13)
    assert [len(tokens) for tokens in whole.tokens] == [13, 13]
    # What the first sequence draws is known for the most part; of the second, nothing is.
    known = [[5, 6, 7, *whole.tokens[0][:6], NO_TOKEN], []]
    again = call(3, text=known, limit=13, steps=2)
    assert again.tokens[0] == whole.tokens[0][:7]
    assert again.by_tokens[0].tolist() == [0, 0, 1, 1]
    assert again.tokens[1] == whole.tokens[1][: len(again.tokens[1])]
    assert again.steps == 2


@pytest.mark.slow
def test_a_limit_and_a_full_cache_end_a_draft(call):
    whole = call(3, text=NOTHING, limit=30)
    known = [
        [*own, *tokens, NO_TOKEN]
        for own, tokens in zip(([5, 6, 7], [9, 8, 7]), whole.tokens, strict=True)
    ]
    limited = call(3, text=known, limit=6)
    assert limited.tokens == [tokens[:6] for tokens in whole.tokens]
    assert not limited.active_n.any()
    # 3 tokens, and columns for 3 drafts: of 16, 10 are left, and the newest token needs none.
    full = call(3, text=known, limit=60, columns=16)
    assert full.tokens == [tokens[:10] for tokens in whole.tokens]
    assert full.active_n.all()
    assert full.steps == 3


@pytest.mark.slow
def test_a_tpu_writes_all_rows_by_kernels(policy, params):
    """A column of the keys and values of two layers each; it makes no loop over rows."""
    sampled, slots, mesh = policy.for_sampling(params), Slots(4), MeshOf(dp=1, name="tpu")
    texts = Texts(np.zeros((4, 64), np.int32), np.zeros(4, np.int32))
    traced = speculate.trace(
        *(policy.decoder, sampled, policy.decoder.empty_cache(4, 64), slots.state),
        *(slots.constants, SharedDistribution(sampling=Sampling(), greedy=False), texts, 8, 0),
        k=2,
        mesh=mesh,
    )
    text = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert text.count("@tpu_custom_call") == 3 * 4
    assert '"stablehlo.scatter"' not in text


SEVERAL = """
import dataclasses, json
import jax, numpy as np
from rl4p.distributed.mesh import Mesh
from rl4p.model.scratch import Scratch
from rl4p.protocols.engine import Request
from rl4p.rollout.continuous import Continuous
from rl4p.engine import speculation
from rl4p.base.types import Prompt

speculation.TOKENS_OF_CACHED = 10**9
model = Scratch(width=32, layers=2, heads=4, num_kv_heads=2)
rows = np.random.default_rng(0).integers(1, 200, (8, 9)).tolist()
fields = {"question": "", "answer": "", "task": ""}
prompts = [Prompt(id=str(i), tokens=row, **fields) for i, row in enumerate(rows)]
results = []
for mesh, k in ((Mesh(dp=8), 0), (Mesh(dp=8), 3), (Mesh(dp=2, fsdp=2, tp=2), 3)):
    policy, params = model.build(mesh, jax.random.key(0))
    policy = dataclasses.replace(policy, end_ids=tuple(range(0, 264, 6)))
    sampler = Continuous(max_response_tokens=48, temperature=0.02, slots=16, draft_tokens=k)
    drawn, _ = sampler(policy, params, prompts, group_size=4, key=jax.random.key(1), version=0)
    drawn = jax.device_get(drawn)
    mask_BT = np.asarray(drawn.response_mask_BT)
    tokens = [x[y].tolist() for x, y in zip(np.asarray(drawn.tokens_BT), mask_BT)]
    results.append([tokens, sampler.metrics().get("rollout/tokens_per_drafted_step", 0)])
print(json.dumps(results))
"""


@pytest.mark.slow
def test_eight_devices_draw_the_same_tokens(on_devices):
    command = [sys.executable, "-c", SEVERAL]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=on_devices(8))
    assert done.returncode == 0, done.stderr[-3000:]
    (without, none), *several = json.loads(done.stdout)
    assert none == 0
    assert len({len(tokens) for tokens in without}) > 1
    for tokens, accepted in several:
        assert tokens == without
        assert accepted > 1.2


@pytest.mark.slow
def test_the_first_response_to_each_prompt_is_drawn_before_the_others(policy, params, prompts):
    """Its tokens are drafts for the other responses."""
    finished = []
    for k in (3, 0):
        sampler = Continuous(max_response_tokens=24, slots=4, draft_tokens=k)
        engine = sampler.open(dataclasses.replace(policy, end_ids=()))
        engine.publish(params, 0)
        requests = [
            Request(tokens=prompt.tokens, keys_N=keys(*range(4)), max_tokens=24)
            for prompt in prompts
        ]
        seen = []
        engine.complete(requests, greedy=True, stop=lambda done, seen=seen: seen.append(done))
        finished.append(next(done for done in seen if done.any()).nonzero()[0].tolist())
    assert finished == [[0, 4, 8, 12], [0, 1, 2, 3]]


def keys(*seeds):
    return np.stack([jax.random.key_data(jax.random.key(seed)) for seed in seeds])


@pytest.mark.slow
@pytest.mark.parametrize("slots", [2, pytest.param(None, marks=pytest.mark.slow)])
def test_a_kept_sequence_continues_as_if_nothing_had_been_rejected(ending, params, slots):
    """The cache of an ended sequence has the keys and values of rejected drafts behind its end."""
    random = np.random.default_rng(0)
    first = [
        Request(tokens=random.integers(1, 256, 3 + i).tolist(), keys_N=keys(i), max_tokens=40 + i)
        for i in range(4)
    ]
    sampler = Continuous(max_response_tokens=R, temperature=LOW, slots=slots, draft_tokens=3)

    def opened(sampler):
        engine = sampler.open(ending)
        engine.publish(params, 3)
        return engine

    engine = opened(sampler)
    completions = engine.complete([dataclasses.replace(x, keep=True) for x in first])
    assert drafted(sampler) > 1
    later = [
        Request(
            tokens=[*x.tokens, *y.tokens.tolist(), 70, 71], keys_N=keys(9), max_tokens=20, drawn=3
        )
        for x, y in zip(first, completions, strict=True)
    ]
    before = engine.prefilled_tokens
    ours = engine.complete(later)
    assert engine.prefilled_tokens == before + 3 * len(later)
    theirs = opened(dataclasses.replace(sampler, draft_tokens=0)).complete(later)
    for a, b in zip(ours, theirs, strict=True):
        assert a.tokens.tolist() == b.tokens.tolist()
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)


@pytest.mark.slow
def test_a_stream_has_no_drafts(policy, params, monkeypatch):
    """Requests come at any time, and the digits of a response may not depend on it."""
    calls = drafts_of_calls(monkeypatch)
    sampler = Continuous(max_response_tokens=64, temperature=LOW, draft_tokens=3)
    engine = sampler.open(dataclasses.replace(policy, end_ids=()))
    engine.publish(params, 0)
    engine.stream(Conversations(6, MOST))
    assert not calls


def test_a_response_that_is_removed_is_a_draft_for_others(policy):
    shape = {"length": 9, "slots": 4, "shards": 1, "parameter_tokens": 9}
    drafting = speculation.Speculation(3, **shape, counts=speculation.Counts())
    layout = Layout(sizes=(4,), most=32, prefill_rows=4)
    batch = batches.Batch(policy, layout, speculation=drafting)
    ended = TokenSequence(context=[1, 2], key=np.uint32([0, 0]), max_tokens=9, end_ids=())
    batch.remove([ended])
    assert drafting.ended == [ended]


def sequence(context, new=()):
    made = TokenSequence(context=context, key=np.uint32([0, 0]), max_tokens=90, end_ids=())
    made.tokens += new
    return made


def make(most=3, length=100, shards=1, parameters=100, slots=1):
    options = {"length": length, "slots": slots, "shards": shards, "counts": Counts()}
    return Speculation(most, parameter_tokens=parameters, **options)


PERIODIC, COUNTING = [1, 2, 3, 4] * 8, list(range(5, 37))


def test_the_cost_of_a_step_by_hand():
    assert make(parameters=20).cost(10, 3) == (20 + 40) / (20 + 10)
    assert make(parameters=20, shards=2).cost(20, 3) == (20 + 40) / (20 + 10)


@pytest.mark.parametrize(
    ("slots", "shards", "largest", "lengths"),
    [
        (16, 1, 16, [3, 7]),  # 128 positions
        (17, 1, 17, [3]),
        (33, 1, 33, []),
        (34, 2, 34, [3]),
        (33, 1, 132, [3]),  # as many as without drafts in the largest number of slots
    ],
)
def test_a_step_has_no_more_positions_than_there_is_memory_for(slots, shards, largest, lengths):
    assert make(most=7, shards=shards, parameters=10**6, slots=largest).likely(slots) == lengths


def test_drafts_must_be_right_and_cost_little():
    right, wrong = [sequence([9, 8], PERIODIC)] * 4, [sequence([9, 8], COUNTING)] * 4
    assert make().choose(right, allowed=True)[::2] == (3, FEW_STEPS)
    assert make().choose(wrong, allowed=True)[::2] == (0, FEW_STEPS)
    # The parameters are read as fast as two tokens: a step of 4 tokens costs 3 steps.
    assert make(parameters=2).choose(right, allowed=True)[::2] == (0, MOST_STEPS)
    # A step of 4 tokens costs 1.75 steps, and of 2 tokens 1.25: if half of the drafts are right,
    # the shorter is better.
    several = make(parameters=12)
    several.learn(np.array([50, 0, 0, 50]))
    assert several.choose(wrong, allowed=True).k == 3
    several.forget()
    several.learn(np.array([48, 50, 1, 1]))
    assert several.choose(wrong, allowed=True).k == 1


def test_sequences_without_new_tokens_show_nothing():
    """A context may repeat itself, and the response not. The next call looks again."""
    chosen = make()
    for _ in range(3):
        assert chosen.choose([sequence(PERIODIC), None], allowed=True) == (0, None, FEW_STEPS)
        chosen.add(FEW_STEPS, None, [])


def test_expected_tokens_by_hand():
    chosen = make(most=4)
    assert chosen.expected(4) == 1
    chosen.learn(np.array([4, 2, 2]))  # of 8 first tokens 4 were right, and of 4 second ones 2
    assert chosen.expected(1) == 1.5
    assert chosen.expected(2) == 1.75
    assert chosen.expected(4) == 1 + 1 / 2 + 1 / 4 + 1 / 8 + 1 / 16
    chosen.learn(np.array([0, 0, 0, 0, 8]))  # earlier ones count half as much
    assert chosen.expected(1) == 1 + 10 / 12


def test_drafts_that_were_wrong_are_tried_again_after_more_and_more_steps():
    chosen = make()
    right, wrong = [sequence([9, 8], PERIODIC)] * 4, [sequence([9, 8], COUNTING)] * 4
    assert chosen.choose(right, allowed=True).k == 3
    chosen.add(16, jnp.int32([[90, 0, 0, 0]] * 4), [(each, 90, True) for each in right])
    for steps in (16, 32, 64, 64):
        assert chosen.choose(wrong, allowed=True) == (0, None, steps)
        chosen.add(steps - 5, None, [])
        assert chosen.choose(right, allowed=True) == (0, None, 5)
        chosen.add(5, None, [])
    assert chosen.choose(right, allowed=True).k == 3
    chosen.forget()
    assert chosen.choose(wrong, allowed=True) == (0, None, 16)
    assert chosen.choose(right[:2], allowed=True).k == 3  # other sizes have other costs
    chosen.forget()
    assert chosen.choose(wrong[:2], allowed=True) == (0, None, 16)
    chosen.add(1, None, [(wrong[3], 1, False)])  # a response has ended
    assert chosen.choose(right[:2], allowed=True).k == 3


def test_drafts_that_are_not_allowed_are_not_looked_up():
    chosen, right = make(), [sequence([9, 8], PERIODIC)] * 4
    chosen.add(1, None, [(right[0], 1, False)])
    assert chosen.choose(right, allowed=False) == (0, None, MOST_STEPS)
    assert not chosen.ended  # they would keep their caches
    assert chosen.choose(right, allowed=True).k == 3


def test_a_text_begins_with_the_newest_responses_to_the_same_context():
    chosen, context = make(most=1, length=30), list(range(50, 62))
    others = [sequence(context, [1, 2]), sequence([9], [7, 7]), sequence(context, [3])]
    chosen.add(1, None, [(each, len(each.tokens), False) for each in others])
    running = sequence(context, [1])
    chosen.keep_responses()
    tokens_nC, begin_n = chosen.texts([running, None])
    tail = context[-LONGEST_MATCH:]
    text = [*tail, 3, NO_TOKEN, *tail, 1, 2, NO_TOKEN, *context, 1]
    assert tokens_nC[0, : len(text)].tolist() == text
    assert (tokens_nC[0, len(text) :] == NO_TOKEN).all()
    assert begin_n.tolist() == [len(text) - 13, 0]
    assert tokens_nC.shape == (2, 4 * 32)


def test_a_text_leaves_room_for_its_sequence():
    chosen = make(most=1, length=30)
    chosen.add(1, None, [(sequence([5], range(i, i + 29)), 29, False) for i in range(9)])
    chosen.keep_responses()
    tokens_nC, begin_n = chosen.texts([sequence([5])])
    assert begin_n[0] + chosen.own <= tokens_nC.shape[1]
    assert tokens_nC[0, begin_n[0]] == 5
    assert begin_n[0] == 3 * 31


def test_responses_of_many_contexts_are_forgotten(monkeypatch):
    monkeypatch.setattr(speculation, "CONTEXTS", 3)
    chosen = make()
    chosen.add(1, None, [(sequence([i], [i]), 1, False) for i in range(5)])
    chosen.keep_responses()
    assert list(chosen.responses) == [(2,), (3,), (4,)]


def test_counts_by_hand():
    chosen = make()
    chosen.add(1, None, [(sequence([1]), 6, True)])
    assert chosen.counts.metrics() == {
        "rollout/tokens_per_decode_step": 1.0,
        "rollout/drafted": 0.0,
    }
    chosen.add(1, jnp.int32([[1, 0, 0, 1], [0, 2, 0, 0]]), [(sequence([1]), 5, True)] * 2)
    assert chosen.counts.metrics() == {
        "rollout/tokens_per_decode_step": 1.6,
        "rollout/drafted": 10 / 16,
        "rollout/tokens_per_drafted_step": 2.5,
    }


@pytest.mark.parametrize(
    ("platform", "count", "tokens"),
    [("cpu", 10, 3), ("cpu", 2**25, 8), ("gpu", 10, 256), ("tpu", 10, 256), ("other", 10, 256)],
)
def test_large_parameters_are_read_from_memory(monkeypatch, platform, count, tokens):
    monkeypatch.setattr(speculation, "TOKENS_OF_CACHED", FEW_TOKENS_OF_CACHED)
    assert parameter_tokens(platform, {"x": np.broadcast_to(np.float32(0), (count,))}) == tokens
