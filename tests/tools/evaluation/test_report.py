"""Tests the scores of responses as JSON and as a table."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from matplotlib.figure import Figure
from omegaconf import OmegaConf
from rich.console import Console

from rl4p.configuration import compose
from rl4p.loop.evaluation import Evaluation
from rl4p.reward.answers import Correct
from rl4p.reward.weighted import Weighted
from rl4p.runs.sample import Sample, Status
from rl4p.tools.evaluation.report import (
    plot_bars,
    plot_curves,
    plot_evaluation,
    print_report,
    results,
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
    chosen_by = None
    prompts = ()


@pytest.fixture(scope="module")
def tasks():
    return results(scores_of(SAMPLES, Asked), SAMPLES)  # type: ignore[arg-type]


def test_a_term_chooses_among_the_samples_of_a_prompt(make_prompt):
    """The grades prefer 8 once and 7 twice, which is the answer of two wrong samples."""

    class Chosen(Asked):
        samples = 3
        pass_at_k = ()
        chosen_by, term = "style", "correct"
        prompts = (make_prompt(id="1", task="a"),)
        phases = SimpleNamespace(reward=Weighted(terms={"correct": Correct()}))
        choice = Evaluation.choice

    graded = (("7", 1.0, False), ("8", 1.5, True), ("7.0", 1.2, False))
    samples = [answer("a", "1", None, True)] + [
        replace(answer("a", "1", i, right), response=f"#### {text}", terms={"style": grade})
        for i, (text, grade, right) in enumerate(graded)
    ]
    found = results(scores_of(samples, Chosen()), samples)["a"]  # type: ignore[arg-type]
    assert (found["best_of"], found["majority_of"]) == (1.0, 0.0)
    assert found["best_of_interval"][1] == 1.0


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
        return rule_in(replace(evaluated.evaluation, phases=phases))

    def rule_in(evaluation):
        return settings(compose(), evaluation)["graders"]["rule"]

    assert rule_in(evaluated.evaluation).startswith("A grade of 1 if the whole response matches a")
    assert of(Silent()).endswith("Silent")


def score(value, *, samples=0):
    found = {"pass_at_1": value, "interval": [value - 0.1, value + 0.05], "samples": samples}
    ks = {"2": value, "4": value + 0.1} if samples else {}
    average = {"4": value - 0.1} if samples else {}
    return found | {
        "pass_at_k": ks,
        "pass_at_k_interval": {k: [x - 0.1, x + 0.1] for k, x in ks.items()},
        "avg_at_k": average,
        "avg_at_k_interval": {k: [x - 0.1, x + 0.1] for k, x in average.items()},
    }


def test_greedy_accuracies_are_bars():
    axes = Figure().add_subplot()
    plot_bars(axes, {"a": score(0.5), "b": score(0.75)})
    assert [bar.get_width() for bar in axes.patches] == [0.5, 0.75]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    (_, _, (segments,)) = axes.containers[0]  # the bars are the second container
    ends = [segment[:, 0].tolist() for segment in segments.get_segments()]
    assert ends == [pytest.approx([0.4, 0.55]), pytest.approx([0.65, 0.8])]


def test_curves_begin_with_the_mean_of_the_samples():
    axes = Figure().add_subplot()
    plot_curves(axes, {"a": score(0.5, samples=4), "b": score(0.75, samples=4)})
    a, b = axes.get_lines()
    assert a.get_xdata().tolist() == [1, 2, 4]
    assert b.get_ydata().tolist() == pytest.approx([0.65, 0.75, 0.85])
    assert (a.get_marker(), a.get_color()) != (b.get_marker(), b.get_color())


@pytest.mark.parametrize("samples", [0, 4])
def test_a_picture_is_written(tmp_path, samples):
    path = tmp_path / "plots" / "evaluation.png"
    plot_evaluation({"a": score(0.5, samples=samples)}, path)
    assert path.read_bytes().startswith(b"\x89PNG")
