"""The plots of a run: its learning curve, and the work of its collector."""

from pathlib import Path
from typing import Any

from rl4p.runs.metric_words import in_words, title
from rl4p.runs.pictures import COLOURS, GREY, legend, panels, plain, save

REWARD = "reward/mean"


def plot_learning_curve(rows: list[dict[str, Any]], path: Path) -> None:
    """Plots pass@1 on held-out prompts, and below it the training reward; nothing without a step.

    Without an evaluation the reward is the only panel.
    """
    if not any(REWARD in row for row in rows):
        return
    scores = sorted({name for row in rows for name in row if name.endswith("/pass_at_1")})
    drawn = [names for names in (scores, [REWARD]) if names]
    figure, axes = panels(len(drawn), size=(7.0, 0.4 + 2.5 * len(drawn)))
    for panel, names in zip(axes, drawn, strict=True):
        words = {name: plain(in_words(name)) for name in names}
        for index, name in enumerate(names):
            points = [(row["step"], row[name]) for row in rows if name in row]
            look: dict[str, Any] = {"color": COLOURS[index % len(COLOURS)], "marker": "o"}
            if name == REWARD:
                look = {"color": GREY, "linewidth": 1.2}
            panel.plot(*zip(*points, strict=True), markersize=4, label=words[name], **look)
        several = "greedy pass@1, held-out prompts"
        panel.set_title(title(words[names[0]] if len(names) == 1 else several))
        panel.set_xlim(left=0)
        legend(panel, loc="best")
    if scores:
        axes[0].set_ylim(-0.02, 1.02)
        axes[0].sharex(axes[1])
    axes[-1].set_xlabel("step")
    save(figure, path)


def plot_collector(rows: list[dict[str, Any]], path: Path) -> None:
    """Plots staleness, waiting times, queue lengths and shares of groups against the step.

    A panel without any metric is left out, and the plot without metrics of a collector or a source.
    """
    rows = [with_share_of_rejected(row) for row in rows if "time/step" in row]
    stale = sorted(
        {name for row in rows for name in row if name.startswith("staleness/share_")},
        key=lambda name: int(name.rpartition("_")[2]),
    )
    replayed = sorted({name for row in rows for name in row if name.startswith("source/")})
    waits = ("time/step", "time/trainer_waits", "time/sampler_waits")
    groups = {
        "share of tokens by age in steps": stale,
        "seconds": waits if any(waits[1] in row for row in rows) else [],
        "groups": ["collector/in_flight", "collector/queue"],
        "share of groups": [*replayed, REJECTED],
    }
    shown = {
        label: present
        for label, names in groups.items()
        if (present := [name for name in names if any(name in row for row in rows)])
    }
    if not shown or not any(
        name.startswith(("collector/", "source/")) for row in rows for name in row
    ):
        return
    figure, axes = panels(len(shown), size=(7.0, 2.1 * len(shown) + 0.4))
    for panel, (label, names) in zip(axes, shown.items(), strict=True):
        steps = [row["step"] for row in rows]
        values = [[row.get(name, 0.0) for row in rows] for name in names]
        short = [name.rpartition("/")[2].replace("share_", "") for name in names]
        if names == stale:
            panel.stackplot(steps, values, labels=[f"{age} steps" for age in short], alpha=0.8)
        else:
            for name, line in zip(short, values, strict=True):
                panel.plot(steps, line, label=name.replace("_", " "), linewidth=1.2)
        panel.set_title(title(label))
        panel.set_ylim(bottom=0)
        legend(panel, fewest=1, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes[-1].set_xlabel("step")
    save(figure, path)


REJECTED = "collector/rejected_share"


def with_share_of_rejected(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row of metrics with the share of the sampled groups that filters rejected."""
    rejected = row.get("collector/rejected")
    if rejected is None:
        return row
    return row | {REJECTED: rejected / max(row.get("collector/sampled", rejected), 1)}
