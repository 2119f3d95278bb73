from dataclasses import replace

import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.loop.source.easy_pool import EasyPool
from rl4p.loop.source.replay import Replay


def test_a_resumed_run_asks_the_same_prompts(resumes, make_prompts, stream):
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
