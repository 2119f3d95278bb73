"""Tests which prompts the sources choose, and that they go on after a restart."""

import json
from array import array
from collections import Counter
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from rl4p.base.errors import InputError
from rl4p.base.types import Demonstration
from rl4p.loop.source import (
    Curriculum,
    EasyPool,
    Mixture,
    PromptStream,
    Replay,
    Stream,
    check_digest,
    digest_of,
    open_source,
)


@pytest.fixture(scope="module")
def new_stream(make_prompt):
    def new_stream(size=7, seed=0, first=0):
        return PromptStream([make_prompt(id=str(first + i)) for i in range(size)], seed)

    return new_stream


def ids(prompts):
    return [prompt.id for prompt in prompts]


@given(size=st.integers(1, 9), takes=st.lists(st.integers(0, 25), min_size=1, max_size=6))
def test_counts_are_exact_and_every_epoch_is_a_permutation(new_stream, size, takes):
    ours = new_stream(size)
    taken = []
    for count in takes:
        new = ours.take(count, 0)
        assert len(new) == count
        taken += ids(new)
    for start in range(0, len(taken), size):
        epoch = taken[start : start + size]
        assert len(set(epoch)) == len(epoch)
    assert set(taken[:size]) <= set(ids(ours.prompts))


@pytest.mark.parametrize("offset", range(16))
def test_a_restored_stream_goes_on_as_if_it_had_never_stopped(new_stream, offset):
    """Tests every offset of two epochs of seven prompts, including the ends of epochs."""
    whole, ours, restored = new_stream(), new_stream(), new_stream()
    expected = whole.take(40, 0)
    ours.take(offset, 0)
    restored.take(3, 0)  # restoring must not depend on earlier calls
    restored.restore(json.loads(json.dumps(ours.state())))
    later = restored.take(11, 0) + restored.take(40 - offset - 11, 0)
    assert later == expected[offset:]


def test_orders_differ_by_epoch_and_by_seed_and_repeat_by_both(new_stream):
    epochs = [ids(new_stream(50, seed).take(100, 0)) for seed in (0, 0, 1)]
    orders = [tuple(epoch[half]) for epoch in epochs for half in (slice(50), slice(50, 100))]
    assert orders[:2] == orders[2:4]
    assert len(set(orders)) == 4


def test_small_takes_are_one_large_take(new_stream):
    ours = new_stream()
    singles = iter(lambda: ours.take(1, 0)[0], None)
    assert list(islice(singles, 30)) == new_stream().take(30, 0)


@pytest.mark.parametrize("change", [{"size": 8}, {"first": 1}])
def test_a_state_of_other_prompts_is_refused(new_stream, change):
    ours = new_stream()
    with pytest.raises(InputError, match="prompts are not those that the run started with"):
        ours.restore(new_stream(**change).state())
    assert ours.take(7, 0) == new_stream().take(7, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"answer": "other"},
        {"question": "other"},
        {"task": "other"},
        {"solution": "other"},
        {"tokens": (9,)},
        {"metadata": {"level": 2}},
        {"system_prompt": "other"},
        {"messages": ({"role": "user", "content": "other"},)},
        {"tools": ({"name": "other"},)},
        {"demonstration": Demonstration(tokens=array("i", range(2000)), trained=((1, 2),))},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_state_of_prompts_with_other_contents_is_refused(make_prompt, change):
    """The ids are the same, but an answer in the file may have been corrected meanwhile."""
    state = PromptStream([make_prompt(id="a"), make_prompt(id="b")], seed=0).state()
    PromptStream([make_prompt(id="a"), make_prompt(id="b")], seed=0).restore(state)
    with pytest.raises(InputError, match="questions, answers or metadata changed"):
        PromptStream([make_prompt(id="a"), make_prompt(id="b", **change)], seed=0).restore(state)


class Forgetful:
    """Options of a source that cannot find a prompt again."""

    def open(self, prompts, *, seed):
        methods = ("take", "credit", "state", "restore")
        return SimpleNamespace(**dict.fromkeys(methods, lambda *arguments: None))


def test_a_complete_source_is_opened(prompts):
    live = open_source(Stream(), prompts, seed=3)
    assert isinstance(live, PromptStream)
    assert live.seed == 3


def test_a_source_without_find_is_refused(prompts):
    with pytest.raises(InputError, match=r"source: .*SimpleNamespace has no method find, but"):
        open_source(Forgetful(), prompts, seed=0)
    with pytest.raises(InputError, match="has no method open"):
        open_source(PromptStream(prompts, 0), prompts, seed=0)


def test_a_source_within_a_source_is_refused_by_its_own_key(prompts):
    with pytest.raises(InputError, match=r"source\.source: .* has no method find"):
        Replay(source=Forgetful(), least=1).open(prompts, seed=0)


def test_a_resumed_run_asks_the_same_prompts(resumes, make_prompts, stream):
    weights = {"task0": [[0, 1.0], [10, 0.0]], "task1": [[0, 1.0]]}
    resumes(Mixture(source=stream, weights=weights), make_prompts())


def test_shares_follow_their_schedule(make_prompts, stream):
    weights = {
        "0": [[0, 3.0]],
        "1": [[0, 1.0], [10, 0.0]],
        "2": [[0, 0.0], [10, 3.0]],
        "3": [[0, 0]],
    }
    source = Mixture(source=stream, weights=weights, by="level").open(make_prompts(), seed=0)
    first = Counter(prompt.metadata["level"] for prompt in source.take(4000, 0))
    last = Counter(prompt.metadata["level"] for prompt in source.take(4000, 10))
    assert first.keys() == {0, 1}
    assert 2850 < first[0] < 3150
    assert last.keys() == {0, 2}
    assert 1850 < last[0] < 2150


def test_each_task_has_epochs_of_its_own(make_prompts, stream):
    weights = {"task0": [[0, 1.0]], "task1": [[0, 0.0], [1, 1.0]]}
    source = Mixture(source=stream, weights=weights).open(make_prompts(), seed=0)
    assert len({prompt.id for prompt in source.take(20, 0)}) == 20


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({}, "weights is empty"),
        ({"task0": [[0, -1]]}, "weights.task0 has the value -1"),
        ({"task0": [[0, 1], [5, 0], [9, 1]], "task1": [[5, 0]]}, "all weights are 0 at step 5"),
        ({"task0": [[3, 0]]}, "all weights are 0 at step 0"),
    ],
)
def test_weights_that_choose_nothing_are_refused(stream, weights, message):
    with pytest.raises(ValueError, match=message):
        Mixture(source=stream, weights=weights)


@pytest.mark.parametrize("names", [["task0"], ["task0", "task1", "task2"]])
def test_each_task_must_have_a_weight(make_prompts, stream, names):
    options = Mixture(source=stream, weights={name: [[0, 1.0]] for name in names})
    with pytest.raises(InputError, match="the task of the prompts is one of task0, task1"):
        options.open(make_prompts(), seed=0)


def test_sources_inside_it_act(resumes, make_prompts, stream):
    inner = Replay(source=stream, capacity=20, share=0.5, least=2)
    steps = resumes(
        Mixture(source=inner, weights={"task0": [[0, 1.0]], "task1": [[0, 1.0]]}), make_prompts()
    )
    replayed = [prompt.drawn_by for step in steps[4:] for prompt in step].count("replay")
    assert 0.3 < replayed / 64 < 0.6


def test_a_resumed_run_asks_the_same_prompts_of_easy_pool(resumes, make_prompts, stream):
    options = EasyPool(source=stream, easy={"level": 0}, probability=[[0, 0.5]], share=0.25)
    resumes(options, make_prompts())


def test_the_probability_falls_over_the_steps(make_prompts, stream):
    prompts = make_prompts()
    options = EasyPool(
        source=stream, easy={"level": [0, 1]}, probability=[[100, 1.0], [300, 0.0]], share=0.5
    )
    source = options.open(prompts, seed=0)
    has_easy = []
    for step in range(400):
        taken = source.take(8, step)
        easy = [prompt for prompt in taken if prompt.drawn_by]
        assert len(easy) in (0, 4)
        assert all((prompt.metadata["level"] < 2) == (prompt in easy) for prompt in taken)
        for prompt in easy:  # the text and the tokens are those of the data set
            assert prompt == replace(prompts[int(prompt.id)], drawn_by="easy_pool")
        has_easy.append(bool(easy))
    rates = np.array(has_easy).reshape(4, 100).mean(axis=1)
    assert rates[0] == 1
    assert rates[3] == 0
    assert 0.6 < rates[1] < 0.9  # 0.75 on average
    assert 0.1 < rates[2] < 0.4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"easy": {}}, "easy is empty"),
        ({"probability": [[0, 2.0]]}, "probability has the value 2"),
    ],
)
def test_options_that_say_nothing_are_refused(stream, options, message):
    with pytest.raises(ValueError, match=message):
        EasyPool(**{"source": stream, "easy": {"level": 0}, "probability": [[0, 1.0]]} | options)


@pytest.mark.parametrize(
    ("easy", "message"),
    [
        ({"level": 9}, "No prompt is easy by"),
        ({"level": [0, 1, 2, 3]}, "All prompts are easy by"),
        ({"size": 1}, "has no size"),
    ],
)
def test_both_kinds_of_prompts_must_exist(make_prompts, stream, easy, message):
    options = EasyPool(source=stream, easy=easy, probability=[[0, 1.0]])
    with pytest.raises(InputError, match=message):
        options.open(make_prompts(), seed=0)


@pytest.mark.slow
def test_all_prompts_of_a_step_have_one_coin_and_shares_are_right_on_average(make_prompts, stream):
    options = EasyPool(source=stream, easy={"level": 0}, probability=[[0, 0.5]], share=0.3)
    source = options.open(make_prompts(), seed=0)
    shares = []
    for step in range(300):
        easy = [bool(prompt.drawn_by) for _ in range(4) for prompt in source.take(1, step)]
        shares.append(np.mean(easy))
    has_some = [share for share in shares if share]
    assert 0.4 < len(has_some) / 300 / (1 - 0.7**4) < 0.6
    assert 0.13 < np.mean(shares) < 0.17


def test_a_replay_of_each_set_stays_in_it(resumes, make_prompts, stream):
    inner = Replay(source=stream, capacity=20, share=0.5, least=2)
    options = EasyPool(source=inner, easy={"level": 0}, probability=[[0, 1.0]], share=0.5)
    steps = resumes(options, make_prompts())
    assert any(prompt.drawn_by == "replay" for step in steps for prompt in step)
    for step in steps:
        assert sum(prompt.metadata["level"] == 0 for prompt in step) == 4


@pytest.mark.parametrize("by", ["level", "id", "task"])
def test_a_resumed_run_asks_the_same_prompts_of_curriculum(resumes, make_prompts, stream, by):
    resumes(Curriculum(source=stream, by=by), make_prompts())


def test_levels_near_the_target_are_preferred(make_prompts, stream, credit):
    prompts = make_prompts()
    source = Curriculum(source=stream, by="level", decay=0.0, floor=0.01, width=0.1).open(
        prompts, seed=0
    )
    before = Counter(prompt.metadata["level"] for prompt in source.take(4000, 0))
    assert all(900 < before[level] < 1100 for level in range(4))  # no level has been tried
    credit(source, prompts[:4], [[0, 0], [0, 1], [1, 1], [0, 1]])
    after = Counter(prompt.metadata["level"] for prompt in source.take(4000, 1))
    weights = 0.01 + np.exp(-np.square([0.5, 0, 0.5, 0]) / 0.02)
    expected = 4000 * weights / weights.sum()
    for level in range(4):
        assert abs(after[level] - expected[level]) < 5 * np.sqrt(expected[level]) + 1


def test_the_probabilities_of_levels_are_a_bell_around_the_target(make_prompts, stream, credit):
    """Pass rates on both sides of the target, at half a width and at two."""
    prompts = make_prompts()
    options = Curriculum(source=stream, by="level", decay=0.0, floor=0.02, target=0.4, width=0.2)
    source = options.open(prompts, seed=0)
    credit(
        source, prompts[:4], [[1, 0], [1, 0, 0, 0, 0, 0, 0, 0, 0, 0], [1] * 4 + [0], [0, 1, 0, 0]]
    )
    counts = Counter(prompt.metadata["level"] for prompt in source.take(20_000, 1))
    rates = np.array([0.5, 0.1, 0.8, 0.25])
    weights = 0.02 + np.exp(-((rates - 0.4) ** 2) / (2 * 0.2**2))
    expected = 20_000 * weights / weights.sum()
    observed = np.array([counts[level] for level in range(4)])
    assert (abs(observed - expected) < 4 * np.sqrt(expected)).all()


def test_pass_rates_are_running_averages_over_groups(make_prompts, stream, credit):
    prompts = make_prompts()
    source = Curriculum(source=stream, by="level", decay=0.75).open(prompts, seed=0)
    credit(source, [prompts[0]], [[1, 0]])
    assert source.rates[0] == 0.5
    credit(source, [prompts[4], prompts[8]], [[1, 1], [0.9, 0]])  # 0.9 is not right
    assert source.rates[0] == pytest.approx((0.5 * 0.75 + 0.25) * 0.75)
    assert np.isnan(source.rates[1:]).all()
    credit(source, [prompts[1]], [[]])
    assert np.isnan(source.rates[1])


def test_prompts_of_other_sources_are_ignored(make_prompts, stream, credit):
    prompts = make_prompts()
    few = [prompt for prompt in prompts if prompt.metadata["level"] < 2]
    source = Curriculum(source=stream, by="level").open(few, seed=0)
    credit(source, prompts[:4], [[1, 1]] * 4)
    assert source.rates.tolist() == [1, 1]


def test_wrong_options_are_refused(make_prompts, stream, credit):
    with pytest.raises(ValueError, match="decay=1 would never learn"):
        Curriculum(source=stream, decay=1.0)
    with pytest.raises(InputError, match="All prompts have the same task"):
        Curriculum(source=stream).open(make_prompts()[::2], seed=0)
    source = Curriculum(source=stream, term="right").open(make_prompts(), seed=0)
    with pytest.raises(InputError, match="term=right is not a term of the reward, which has corre"):
        credit(source, source.take(2, 0), [[1], [0]])
    saved = Curriculum(source=stream).open(make_prompts(), seed=0).state()
    changed = Curriculum(source=stream).open(make_prompts(answer="other"), seed=0)
    with pytest.raises(InputError, match="The prompts are not those"):
        changed.restore(saved)


def test_sources_inside_it_act_of_curriculum(resumes, make_prompts, stream):
    inner = Replay(source=stream, capacity=20, share=0.5, least=2)
    steps = resumes(Curriculum(source=inner), make_prompts())
    replayed = [prompt.drawn_by for step in steps[4:] for prompt in step].count("replay")
    assert 0.3 < replayed / 64 < 0.6


def test_a_resumed_run_asks_the_same_prompts_of_replay(resumes, make_prompts, stream):
    options = Replay(source=stream, capacity=10, share=0.5, least=4, exploit=0.5)
    steps = resumes(options, make_prompts())
    replayed = [[p.drawn_by for p in step].count("replay") for step in steps]
    assert replayed == [0, *[4] * 11]


def test_a_share_is_replayed_once_the_buffer_has_enough(make_prompts, stream, credit):
    prompts = make_prompts()
    source = Replay(source=stream, share=0.375, least=5, exploit=1.0, exploration=0.0).open(
        prompts, seed=0
    )
    first = source.take(4, 0)
    credit(source, first, [[0, 1]] * 4)
    assert all(prompt.drawn_by is None for prompt in source.take(4, 1))
    credit(source, [prompts[0]], [[0, 1]])
    taken = source.take(8, 2)
    replayed = [prompt for prompt in taken if prompt.drawn_by]
    assert len(replayed) == 3
    assert len(set(ids(taken))) == 8
    for prompt in replayed:
        assert prompt == replace(prompts[int(prompt.id)], drawn_by="replay")


def test_the_new_prompts_of_a_step_are_not_replayed_in_it(make_prompts, stream, credit):
    prompts = make_prompts(8)
    source = Replay(source=stream, share=0.5, least=1, exploit=0.5).open(prompts, seed=0)
    credit(source, prompts, [[0, 1]] * 8)
    for step in range(6):
        taken = source.take(8, step)
        assert len(set(ids(taken[:4]))) == 4
        assert len(set(ids(taken))) == 8
        credit(source, taken, [[0, 1]] * 8)


def test_rewards_of_replayed_prompts_are_credited_to_them(make_prompts, stream, credit):
    prompts = make_prompts(4)
    source = Replay(source=stream, least=1, value="mean").open(prompts, seed=0)
    credit(source, prompts[:1], [[1, 1]])
    credit(source, [replace(prompts[0], drawn_by="replay")], [[0, 0]])
    (entry,) = source.buffer.entries.values()
    assert (entry.count, entry.mean) == (4, 0.5)


def test_a_buffer_that_never_replays_is_refused(stream):
    with pytest.raises(ValueError, match="least=9 is more than capacity=8"):
        Replay(source=stream, capacity=8, least=9)


@pytest.mark.parametrize("count", [1, 3])
def test_a_share_of_few_prompts_is_right_on_average(make_prompts, stream, credit, count):
    """Other sources take their prompts one by one."""
    prompts = make_prompts()
    source = Replay(source=stream, share=0.3, least=1).open(prompts, seed=0)
    credit(source, prompts, [[0, 1]] * 40)
    replayed = 0
    for step in range(600):
        taken = source.take(count, step)
        assert len(taken) == count
        replayed += sum(prompt.drawn_by == "replay" for prompt in taken)
        credit(source, taken, [[0, 1]] * count)
    assert 0.27 < replayed / (600 * count) < 0.33


def test_a_prompt_is_not_replayed_before_its_samples_have_rewards(
    make_prompts, stream, credit, saved
):
    prompts = make_prompts()
    source = Replay(source=stream, share=1.0, least=1, exploit=1.0).open(prompts, seed=0)
    credit(source, prompts[:12], [[0, 1]] * 12)
    first, second = source.take(5, 0), source.take(5, 0)
    assert not set(ids(first)) & set(ids(second))
    restored = Replay(source=stream, share=1.0, least=1, exploit=1.0).open(prompts, seed=0)
    restored.restore(saved(source))
    third = restored.take(5, 1)
    assert not set(ids(third)) & set(ids(first + second))
    credit(source, first + second, [[0, 1]] * 10)
    again = source.take(5, 1)
    assert all(prompt.drawn_by for prompt in again)
    assert set(ids(again)) <= set(ids(prompts[:12]))


@pytest.mark.parametrize("together", [False, True])
def test_a_prompt_that_is_twice_in_flight_waits_for_both(make_prompts, stream, credit, together):
    prompts = make_prompts(4)
    source = Replay(source=stream, share=1.0, least=2, exploit=1.0).open(prompts, seed=0)
    taken = source.take(4, 0) + source.take(4, 0)
    assert sorted(ids(taken)) == sorted(ids(prompts) * 2)
    if together:
        credit(source, taken, [[0, 1]] * 8)
    else:
        credit(source, prompts, [[0, 1]] * 4)
        assert not any(prompt.drawn_by for prompt in source.take(2, 1))
        credit(source, prompts, [[0, 1]] * 4)
        credit(source, prompts, [[0, 1]] * 4)
    assert not source.pending
    assert all(prompt.drawn_by for prompt in source.take(2, 1))


def test_fill_ups_differ_from_the_replayed_prompts(make_prompts, stream, credit):
    for seed in range(8):
        prompts = make_prompts(6)
        source = Replay(source=stream, share=0.75, least=1, exploit=0.5).open(prompts, seed=seed)
        credit(source, prompts[:3], [[0, 1]] * 3)
        for step in range(2):  # the second step begins in the middle of the epoch
            taken = source.take(4, step)
            assert len(set(ids(taken))) == len(taken) == 4
            credit(source, taken, [[0, 1]] * 4, step)


def test_a_prompt_that_filled_a_step_up_is_not_replayed_before_it_has_rewards(
    make_prompts, stream, credit
):
    prompts = make_prompts(12)
    source = Replay(source=stream, share=1.0, least=1, exploit=1.0).open(prompts, seed=0)
    credit(source, prompts, [[0, 1]] * 12)
    source.buffer.entries = dict(list(source.buffer.entries.items())[:2])
    taken = source.take(6, 0)
    fill_ups = [prompt for prompt in taken if prompt.drawn_by is None]
    assert len(fill_ups) >= 4
    for prompt in fill_ups:  # they enter the buffer, but by rewards of an earlier step
        source.buffer.update(prompt, [0, 1])
    again = [prompt for prompt in source.take(6, 1) if prompt.drawn_by]
    assert not set(ids(again)) & set(ids(taken))


def test_prompts_of_other_sources_do_not_enter(make_prompts, stream, credit):
    prompts = make_prompts()
    source = Replay(source=stream, least=1, share=0.5).open(prompts[:20], seed=0)
    credit(source, prompts, [[0, 1]] * 40)
    assert len(source.buffer.entries) == 20
    for step in range(10):
        assert {int(prompt.id) for prompt in source.take(8, step)} < set(range(20))


def test_too_few_prompts_for_a_replay_are_refused(make_prompts, stream):
    with pytest.raises(InputError, match="There are 40 different prompts, but a replay begins"):
        Replay(source=stream).open(make_prompts(), seed=0)


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"metadata": {"b": 2, "a": 1}}, True),  # the order of keys
        ({"metadata": {"a": 1, "b": 3}}, False),
        ({"answer": "other"}, False),
        ({"drawn_by": None}, True),
        ({"drawn_by": "replay"}, False),
        ({"metadata": {"a": np.int64(1), "b": 2}}, True),
        ({"metadata": {"a": np.int64(2), "b": 2}}, False),
    ],
)
def test_a_digest_is_of_all_fields(make_prompt, change, same):
    usual = {"id": "a", "metadata": {"a": 1, "b": 2}}
    prompts = [make_prompt(**usual), make_prompt(**usual | change)]
    assert (digest_of(prompts[:1]) == digest_of(prompts[1:])) is same


def middle(value):
    array = np.zeros(2000, np.int32)
    array[1000] = value
    return array


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (middle(0), middle(1)),  # the text of both is the same
        ([middle(0)], [middle(1)]),
        (middle(0), middle(0).astype(np.int64)),
        (middle(0), middle(0).reshape(2, 1000)),
        ({"a", "b"}, {"a", "c"}),
    ],
)
def test_a_digest_is_of_whole_arrays(make_prompt, one, other):
    prompts = [make_prompt(metadata={"a": each}) for each in (one, one, other)]
    first, same, different = (digest_of([prompt]) for prompt in prompts)
    assert first == same != different


def test_a_digest_depends_on_the_order_and_the_number_of_prompts(make_prompt):
    a, b = make_prompt(id="a"), make_prompt(id="b")
    digests = {digest_of(prompts) for prompts in ([a], [b], [a, b], [b, a], [a, a])}
    assert len(digests) == 5


def test_another_digest_is_refused():
    check_digest("a", "a")
    with pytest.raises(InputError, match="The prompts are not those that the run started with"):
        check_digest("a", "b")
