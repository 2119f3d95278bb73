"""Tests the scores of responses as JSON and as a table."""

import pytest
from omegaconf import OmegaConf
from rich.console import Console

from rl4p.configuration import compose
from rl4p.reward.weighted import Weighted
from rl4p.runs.sample import Sample, Status
from rl4p.tools.evaluation.report import (
    print_report,
    results,
    rule_of,
    scores_of,
    settings,
)


def answer(task, prompt, sample, correct, length=4, status=Status.COMPLETED):
    return Sample(
        prompt="", response="", task=task, id=prompt, sample=sample, correct=correct,
        length=length, status=status,
    )  # fmt: skip


SAMPLES = [
    answer("a", "1", None, True),
    answer("a", "2", None, None, length=8, status=Status.TRUNCATED),
    *(answer("a", "1", i, i < 2) for i in range(4)),
    *(answer("a", "2", i, False) for i in range(4)),
    answer("b", "1", None, True),
    *(answer("b", "1", i, True) for i in range(4)),
]


class Asked:
    samples = 4
    pass_at_k = (2, 4)


@pytest.fixture(scope="module")
def tasks():
    return results(scores_of(SAMPLES, Asked), SAMPLES)  # type: ignore[arg-type]


def test_scores_are_values_of_json(tasks):
    a = tasks["a"]
    assert (a["pass_at_1"], a["prompts"], a["samples"], a["invalid"]) == (0.5, 2, 4, 1)
    assert a["pass_at_k"] == {"2": pytest.approx((1 - 1 / 6) / 2), "4": 0.5}
    assert a["avg_at_k"] == {"4": 0.25}
    for name in ("pass_at_k", "avg_at_k"):
        for k, (low, high) in a[f"{name}_interval"].items():
            assert low < a[name][k] < high
    assert a["interval"][0] < 0.5 < a["interval"][1]
    assert a["response_tokens"] == pytest.approx((9 * 4 + 8) / 10)
    assert a["truncated"] == pytest.approx(1 / 10)
    assert list(tasks) == ["a", "b"]


@pytest.mark.slow
def test_the_table_has_each_accuracy_with_its_interval(tasks, evaluated, capsys):
    """It fits into a terminal of 80 columns."""
    found = {"tasks": tasks} | settings(compose(), evaluated.evaluation)
    print_report(found, Console(highlight=False, width=80))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    low, high = tasks["a"]["interval"]
    assert lines[:2] == [
        "task prompts score accuracy 95 % interval",
        f"a 2 greedy pass@1 0.500 {low:.3f} to {high:.3f}",
    ]
    low, high = tasks["a"]["pass_at_k_interval"]["4"]
    assert lines[2].startswith("avg@4 0.250 ")
    assert lines[4] == f"pass@4 0.500 {low:.3f} to {high:.3f}"
    assert lines[5].startswith("b 1 greedy pass@1 1.000")
    assert (
        "responses a: 4.4 tokens on average, 10.0% truncated, 1 could not be graded and count as "
        "wrong"
    ) in lines


@pytest.mark.slow
def test_the_settings_are_those_of_the_evaluation(evaluated):
    config = compose(["reward.terms.format.weight=0.25"])
    found = settings(config, evaluated.evaluation)
    policy = evaluated.evaluation.policy
    assert found["template"]["chat_template"] == policy.tokenizer.chat_template
    first = {prompt.task: prompt for prompt in reversed(evaluated.evaluation.prompts)}
    assert found["template"]["first_prompts"] == {
        task: policy.tokenizer.decode(prompt.tokens) for task, prompt in first.items()
    }
    assert found["stop"]["ids"] == list(policy.end_ids)
    assert found["graders"]["reward"] == OmegaConf.to_container(config.reward, resolve=True)
    assert found["graders"]["reward"]["terms"]["format"]["weight"] == 0.25


@pytest.mark.slow
def test_a_rule_is_the_docstring_of_the_term_or_its_name(evaluated):
    from dataclasses import dataclass, replace

    @dataclass(frozen=True)
    class Silent:
        weight: float = 1.0

        def __call__(self, episodes):
            return [1.0] * len(episodes)

    def of(term):
        reward = Weighted(terms={evaluated.evaluation.term: term})
        phases = replace(evaluated.evaluation.phases, reward=reward)
        return rule_of(replace(evaluated.evaluation, phases=phases))

    assert rule_of(evaluated.evaluation).startswith("A grade of 1 if the whole response matches a")
    assert of(Silent()).endswith("Silent")
