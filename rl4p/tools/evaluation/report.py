"""The results of an evaluation: evaluation.json, a table with the settings, and a picture."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rl4p.loop.accuracy import METHOD, Score, Tally
from rl4p.loop.evaluation import Evaluation
from rl4p.runs.pictures import COLOURS, GREY, MARKERS, legend, panels, plain, save
from rl4p.runs.progress import shorten
from rl4p.runs.sample import Sample, Status


def settings(config: DictConfig, evaluation: Evaluation) -> dict[str, Any]:
    """Returns what a score depends on besides the policy, as values of JSON.

    template: the chat template, its arguments, and the first prompt of each task in it.
    stop: the tokens that end a response, and its limit.
    graders: the terms of the reward, and the term that decides; 1 or more is correct.
    sampling: the sampler, and the distribution and the seed of the samples.
    """
    policy, rollout = evaluation.policy, evaluation.phases.rollout
    first = {prompt.task: prompt for prompt in reversed(evaluation.prompts)}
    decode: Any = policy.tokenizer.decode
    # The rule of the deciding term: the first line of its docstring, or its class.
    terms = getattr(evaluation.phases.reward, "terms", {})
    kind = type(terms.get(evaluation.term, evaluation.phases.reward))
    rule = (inspect.getdoc(kind) or "").split("\n")[0].replace("``", "`")
    if not rule or rule.startswith(f"{kind.__name__}("):  # the signature, of a dataclass
        rule = kind.__qualname__
    node = config.evaluation.rollout or config.rollout
    return {
        "template": {
            "chat_template": policy.tokenizer.chat_template,
            "arguments": dict(policy.template),
            "date": policy.date,
            "first_prompts": {
                task: decode(prompt.tokens) for task, prompt in reversed(first.items())
            },
        },
        "stop": {
            "strings": [decode([token]) for token in policy.end_ids],
            "ids": list(policy.end_ids),
            "max_response_tokens": rollout.max_response_tokens,
        },
        "graders": {
            "term": evaluation.term,
            "correct_from": 1.0,
            "rule": rule,
            "reward": OmegaConf.to_container(config.reward, resolve=True),
        },
        "sampling": {
            "rollout": node._target_,
            **asdict(rollout.sampling),
            "stop": list(getattr(rollout, "stop", ())),
            "tasks": {name: dict(own) for name, own in getattr(rollout, "tasks", {}).items()},
            "samples": evaluation.samples,
            "seed": evaluation.seed,
        },
        "intervals": METHOD,
    }


def scores_of(samples: Sequence[Sample], evaluation: Evaluation) -> dict[str, Score]:
    """Returns the scores of responses by task; one that could not be graded is wrong."""
    tally, term = Tally(), evaluation.chosen_by
    by_id = {(prompt.task, prompt.id): prompt for prompt in evaluation.prompts}
    for each in samples:
        choice = None
        if term is not None and each.sample is not None:
            prompt, grade = by_id[str(each.task), str(each.id)], each.terms.get(term)
            right = each.correct is True
            choice = evaluation.choice(prompt, each.response, grade, correct=right)
        tally.add(
            str(each.task),
            str(each.id),
            greedy=each.sample is None,
            correct=each.correct is True,
            valid=each.correct is not None,
            choice=choice,
        )
    return tally.scores(evaluation.samples, evaluation.pass_at_k)


def results(scores: Mapping[str, Score], samples: Sequence[Sample]) -> dict[str, Any]:
    """Returns the scores by task as values of JSON, with the lengths of the responses.

    `interval` belongs to the greedy pass@1.
    """
    by_task: dict[str, list[Sample]] = {task: [] for task in scores}
    for each in samples:
        by_task[str(each.task)].append(each)
    found = {}
    for task, score in scores.items():
        greedy, own = score.pass_at_1, by_task[task]
        row: dict[str, Any] = {"pass_at_1": greedy.value, "interval": [greedy.low, greedy.high]}
        average = {} if score.average is None else {score.samples: score.average}
        for name, estimates in (("pass_at_k", score.pass_at_k), ("avg_at_k", average)):
            row[name] = {str(k): each.value for k, each in estimates.items()}
            row[f"{name}_interval"] = {str(k): [x.low, x.high] for k, x in estimates.items()}
        for name, each in score.chosen().items():
            row |= {name: each.value, f"{name}_interval": [each.low, each.high]}
        found[task] = row | {
            "prompts": score.prompts,
            "samples": score.samples,
            "invalid": score.invalid,
            "response_tokens": sum(each.length or 0 for each in own) / len(own),
            "truncated": sum(each.status == Status.TRUNCATED for each in own) / len(own),
        }
    return found


def print_report(report: Mapping[str, Any], console: Console) -> None:
    """Prints the scores with their intervals, and the settings behind them."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("task", "prompts", "score", "accuracy", "95 % interval"):
        left = title in ("task", "score")
        table.add_column(title, justify="left" if left else "right", overflow="fold")
    lines = []
    for task, score in report["tasks"].items():
        rows = [("greedy pass@1", score["pass_at_1"], score["interval"])]
        for name in ("avg", "pass"):
            intervals = score[f"{name}_at_k_interval"]
            rows += [(f"{name}@{k}", x, intervals[k]) for k, x in score[f"{name}_at_k"].items()]
        for name in ("best_of", "majority_of"):
            if name in score:
                shown = f"{name.replace('_', ' ')} {score['samples']}"
                rows.append((shown, score[name], score[f"{name}_interval"]))
        for i, (name, value, (low, high)) in enumerate(rows):
            first = ("", "") if i else (task, f"{score['prompts']:,}")
            table.add_row(*first, name, f"{value:.3f}", f"{low:.3f} to {high:.3f}")
        said = f"{task}: {score['response_tokens']:.1f} tokens on average, {score['truncated']:.1%}"
        said += f" truncated, {score['invalid']:,} could not be graded and count as wrong"
        lines.append(("responses", said))
    template, stop, graders = report["template"], report["stop"], report["graders"]
    arguments = "".join(f", {key}={value}" for key, value in template["arguments"].items())
    for task, text in template["first_prompts"].items():
        lines.append(("template", f"{task}: {shorten(repr(text))}{arguments}"))
    stops = " or ".join(f"{shorten(repr(text))}" for text in stop["strings"])
    drawn, sampling = "greedy", report["sampling"]
    if sampling["samples"]:
        drawn += (
            f", and {sampling['samples']} samples per prompt at temperature="
            f"{sampling['temperature']}, top_k={sampling['top_k']}, top_p={sampling['top_p']}, "
            f"seed={sampling['seed']}"
        )
    lines += [
        ("stop", f"{stops}, or after {stop['max_response_tokens']} tokens"),
        ("correct", f"{graders['term']} >= 1: {graders['rule']}"),
        ("sampling", drawn),
        ("intervals", report["intervals"]),
    ]
    console.print(table)
    for name, line in lines:
        console.print(Text.assemble((f"{name:<10}", "dim"), line), soft_wrap=True)


GREYS = ("0.45", "0.7")  # of the bars, since colours stand for tasks


def plot_evaluation(tasks: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Plots greedy pass@1 and avg@n of each task, and with samples pass@k against k."""
    curves = any(score["pass_at_k"] for score in tasks.values())
    height = max(2.6, 1.2 + 0.5 * len(tasks))
    size = 9.0 if curves else 6.0, height + curves
    figure, axes = panels(1 + curves, size=size, columns=1 + curves)
    plot_bars(axes[0], tasks)
    if curves:
        plot_curves(axes[1], tasks)
    save(figure, path)


def plot_bars(axes: Any, tasks: Mapping[str, Mapping[str, Any]]) -> None:
    """Plots a bar with its interval for each task: greedy pass@1, and below it avg@n."""
    both = [("greedy pass@1", "pass_at_1", GREYS[0], 0.0)]
    samples = max(score["samples"] for score in tasks.values())
    if samples:
        both = [(*both[0][:3], 0.19), (f"avg@{samples}", "avg_at_k", GREYS[1], -0.19)]
    for label, name, color, shift in both:
        values, bounds = [], []
        for score in tasks.values():
            sampled = name == "avg_at_k"
            values.append(score[name][str(samples)] if sampled else score[name])
            bounds.append(score[f"{name}_interval"][str(samples)] if sampled else score["interval"])
        errors = [
            [value - low for value, (low, _) in zip(values, bounds, strict=True)],
            [high - value for value, (_, high) in zip(values, bounds, strict=True)],
        ]
        places = [-i + shift for i in range(len(tasks))]
        axes.barh(
            places, values, height=0.36, color=color, xerr=errors, ecolor=GREY, capsize=3,
            label=label,
        )  # fmt: skip
    axes.set_yticks([-i for i in range(len(tasks))], [plain(task) for task in tasks])
    axes.set_xlim(0, 1.02)
    axes.set_title("Accuracy, with 95% intervals")
    if samples:
        legend(axes, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)


def plot_curves(axes: Any, tasks: Mapping[str, Mapping[str, Any]]) -> None:
    """Plots pass@k of each task with its interval; pass@1 of samples is avg@n."""
    ks: set[int] = set()
    for i, (task, score) in enumerate(tasks.items()):
        samples = str(score["samples"])
        points = {1: (score["avg_at_k"][samples], score["avg_at_k_interval"][samples])} | {
            int(k): (value, score["pass_at_k_interval"][k])
            for k, value in score["pass_at_k"].items()
        }
        k, color = sorted(points), COLOURS[i % len(COLOURS)]
        lows, highs = zip(*(points[each][1] for each in k), strict=True)
        axes.fill_between(k, lows, highs, color=color, alpha=0.15, linewidth=0)
        marker = MARKERS[i % len(MARKERS)]
        axes.plot(k, [points[each][0] for each in k], color=color, marker=marker, label=plain(task))
        ks |= set(k)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(ks), [str(k) for k in sorted(ks)])
    axes.set_xlabel("k, samples per prompt")
    axes.set_title("pass@k")
    axes.set_ylim(-0.02, 1.02)
    legend(axes, fewest=1, loc="best")
