from collections import Counter

import pytest

from rl4p.base.errors import InputError
from rl4p.loop.source.mixture import Mixture
from rl4p.loop.source.replay import Replay


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
