from dataclasses import replace

import pytest

from rl4p.base.errors import InputError
from rl4p.loop.source.replay import Replay


def ids(prompts):
    return [prompt.id for prompt in prompts]


def test_a_resumed_run_asks_the_same_prompts(resumes, make_prompts, stream):
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
    assert len(source.buffer) == 20
    for step in range(10):
        assert {int(prompt.id) for prompt in source.take(8, step)} < set(range(20))


def test_too_few_prompts_for_a_replay_are_refused(make_prompts, stream):
    with pytest.raises(InputError, match="There are 40 different prompts, but a replay begins"):
        Replay(source=stream).open(make_prompts(), seed=0)
