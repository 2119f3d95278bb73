"""Tests that samples stand side by side only for the same prompt, seed and step."""

from rl4p.runs.sample import Sample
from rl4p.tools.comparison.runs import Run, RunGroup
from rl4p.tools.comparison.samples import LETTERS, PROMPTS, side_by_side
from tests.support.compared_runs import sample


def group(*samples, seed=0):
    read = [Sample.from_dict(row) for row in samples]
    run = Run(name="run", seed=seed, config={}, rows=[], samples=read)
    return RunGroup(overrides=(), settings={}, runs=(run,))


def test_responses_to_one_prompt_are_side_by_side():
    a = group(sample(1, "p", "four"), sample(1, "p", "the second is not shown"), sample(1, "q"))
    b = group(sample(1, "p", "five"), sample(2, "q"))
    (found,) = side_by_side([a, b])
    assert (found.step, found.seed, found.prompt, found.reference) == (1, 0, "2+3=", "5")
    answers = [(answer.group, answer.response) for answer in found.answers]
    assert answers == [(0, "four"), (1, "five")]
    assert found.answers[0].reward == "1"
    # Samples of other seeds are not compared.
    assert side_by_side([group(sample(1, "p")), group(sample(1, "p"), seed=1)]) == []


def test_the_seed_that_most_groups_share_is_chosen():
    apart = group(sample(1, "p"), seed=1)
    shared = [group(sample(1, "q"), seed=2), group(sample(1, "q"), seed=2)]
    (found,) = side_by_side([apart, *shared])
    assert (found.seed, [answer.group for answer in found.answers]) == (2, [1, 2])


def test_prompts_are_spread_over_the_run():
    samples = [sample(step, f"p{step}") for step in range(1, 41)]
    found = side_by_side([group(*samples), group(*samples)])
    assert len(found) == PROMPTS
    assert (found[0].step, found[-1].step) == (1, 40)


def test_long_and_unwritable_texts_are_made_fit():
    long = group(sample(1, "p", "x" * (LETTERS + 7)), sample(2, "p", "\ud800"))
    found = side_by_side([long, long])
    assert found[0].answers[0].response.endswith("x\N{HORIZONTAL ELLIPSIS} (7 more characters)")
    assert found[1].answers[0].response == "?"


def test_samples_that_lack_a_value_are_shown_without_it():
    bare = group({"step": 1, "prompt": "2+3=", "response": ""})
    (found,) = side_by_side([bare, bare])
    assert (found.reference, found.answers[0].reward) == ("", "none")
