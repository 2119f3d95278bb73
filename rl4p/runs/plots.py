"""The plot of a run's learning curve."""

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def plot_learning_curve(rows: list[dict[str, Any]], path: Path) -> None:
    """Plots pass@1 on held-out prompts and the training reward against the step."""
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    reward = [(row["step"], row["reward/mean"]) for row in rows if "reward/mean" in row]
    reward_axes = axes.twinx()
    reward_axes.plot(*zip(*reward, strict=True), color="0.7", linewidth=1.2, label="reward/mean")
    reward_axes.set_ylabel("mean reward of the samples", color="0.45")
    names = sorted({name for row in rows for name in row if name.endswith("/pass_at_1")})
    for name in names:
        points = [(row["step"], row[name]) for row in rows if name in row]
        axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=name)
    axes.set_xlabel("step")
    axes.set_ylabel("greedy pass@1, held-out prompts")
    axes.set_ylim(-0.02, 1.02)
    axes.grid(alpha=0.25)
    axes.set_zorder(reward_axes.get_zorder() + 1)  # draws pass@1 over the reward
    axes.patch.set_visible(False)
    handles = [*axes.get_lines(), *reward_axes.get_lines()]
    axes.legend(handles=handles, loc="lower right", frameon=False)
    for spine in ("top",):
        axes.spines[spine].set_visible(False)
        reward_axes.spines[spine].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
