"""The picture of an evaluation: accuracies with intervals, and pass@k against k."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl4p.runs.pictures import COLOURS, GREY, MARKERS, legend, panels, plain, save

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
