"""The plots of a run: its learning curve, and the work of its collector."""

from io import BytesIO
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from rl4p.errors import RunError
from rl4p.runs.record import replace_file


def plot_learning_curve(rows: list[dict[str, Any]], path: Path) -> None:
    """Plots pass@1 on held-out prompts and the training reward; nothing without a step."""
    reward = [(row["step"], row["reward/mean"]) for row in rows if "reward/mean" in row]
    if not reward:
        return
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes = figure.add_subplot()
    reward_axes = axes.twinx()
    reward_axes.plot(*zip(*reward, strict=True), color="0.7", linewidth=1.2, label="reward/mean")
    reward_axes.set_ylabel("mean reward of the samples", color="0.45")
    names = sorted({name for row in rows for name in row if name.endswith("/pass_at_1")})
    for name in names:
        points = [(row["step"], row[name]) for row in rows if name in row]
        axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=plain(name))
    axes.set_xlabel("step")
    axes.set_ylabel("greedy pass@1, held-out prompts")
    axes.set_ylim(-0.02, 1.02)
    axes.grid(alpha=0.25)
    axes.set_zorder(reward_axes.get_zorder() + 1)  # draws pass@1 over the reward
    axes.patch.set_visible(False)
    handles = [*axes.get_lines(), *reward_axes.get_lines()]
    axes.legend(handles=handles, loc="lower right", frameon=False)
    for each in (axes, reward_axes):
        each.spines["top"].set_visible(False)
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
    panels = {
        "share of tokens by age in steps": stale,
        "seconds": waits if any(waits[1] in row for row in rows) else [],
        "groups": ["collector/in_flight", "collector/queue"],
        "share of groups": [*replayed, REJECTED],
    }
    shown = {
        label: present
        for label, names in panels.items()
        if (present := [name for name in names if any(name in row for row in rows)])
    }
    groups = ("collector/", "source/")
    if not shown or not any(name.startswith(groups) for row in rows for name in row):
        return
    figure = Figure(figsize=(7.0, 2.1 * len(shown) + 0.4), layout="constrained")
    axes = figure.subplots(len(shown), squeeze=False, sharex=True)[:, 0]
    for panel, (label, names) in zip(axes, shown.items(), strict=True):
        steps = [row["step"] for row in rows]
        values = [[row.get(name, 0.0) for row in rows] for name in names]
        short = [name.rpartition("/")[2].replace("share_", "") for name in names]
        if names == stale:
            panel.stackplot(steps, values, labels=[f"{age} steps" for age in short], alpha=0.8)
        else:
            for name, line in zip(short, values, strict=True):
                panel.plot(steps, line, label=name.replace("_", " "), linewidth=1.2)
        panel.set_ylabel(label)
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.25)
        panel.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    axes[-1].set_xlabel("step")
    save(figure, path)


def plain(text: str) -> str:
    """Returns a text that Matplotlib shows as it stands; it would read $...$ as a formula."""
    return text.replace("$", r"\$")


def save(figure: Figure, path: Path) -> None:
    """Writes a figure as a PNG file, atomically.

    Raises:
      RunError: the file cannot be written.
    """
    content = BytesIO()
    figure.savefig(content, dpi=150)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"Cannot write {path}: {error.strerror}.") from error
    replace_file(path, content.getvalue())


REJECTED = "collector/rejected_share"


def with_share_of_rejected(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row of metrics with the share of the sampled groups that filters rejected."""
    rejected = row.get("collector/rejected")
    if rejected is None:
        return row
    return row | {REJECTED: rejected / max(row.get("collector/sampled", rejected), 1)}
