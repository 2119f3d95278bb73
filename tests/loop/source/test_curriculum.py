from collections import Counter

import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.loop.source.curriculum import Curriculum
from rl4p.loop.source.replay import Replay


@pytest.mark.parametrize("by", ["level", "id", "task"])
def test_a_resumed_run_asks_the_same_prompts(resumes, make_prompts, stream, by):
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


def test_sources_inside_it_act(resumes, make_prompts, stream):
    inner = Replay(source=stream, capacity=20, share=0.5, least=2)
    steps = resumes(Curriculum(source=inner), make_prompts())
    replayed = [prompt.drawn_by for step in steps[4:] for prompt in step].count("replay")
    assert 0.3 < replayed / 64 < 0.6
