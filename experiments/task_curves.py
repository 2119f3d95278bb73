"""A table and a picture of what the policy of the package learns of the tasks beside sums.

    python -m experiments.task_curves outputs/task_curves

reads the runs in this folder and writes experiments/task_curves.md, which begins with the commands
of the runs (`COMMANDS`), and task_curves.png.
"""

import json
import statistics
import sys
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

HERE = Path(__file__).parent
STAGES = ("sft", "grpo")
COMMANDS = """\
    curve() {
      at=outputs/task_curves/$1/$3
      python -m rl4p.train experiment=$1 seed=$3 evaluation.every=30 samples.every=0 tracker=none \\
        hydra.run.dir=$at/sft
      python -m rl4p.export resume=$at/sft out=$at/policy
      python -m rl4p.train experiment=$2 seed=$3 evaluation.every=20 samples.every=0 tracker=none \\
        hydra.run.dir=$at/grpo model=pretrained model.path=$at/policy
    }
    for seed in 0 1 2; do curve mixture_sft mixture_grpo $seed; done
    curve rush_hour_sft rush_hour_tiny_grpo 0
    python -m experiments.task_curves outputs/task_curves
"""

Curve = dict[int, float]


def evaluations(run: Path) -> dict[str, Curve]:
    """Returns the greedy pass@1 of each task by step."""
    found: dict[str, Curve] = {}
    for row in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        for name, value in row.items():
            match name.split("/"):
                case ["eval", task, "pass_at_1"]:
                    found.setdefault(task, {})[row["step"]] = value
    return found


def curves(folder: Path) -> dict[str, list[tuple[Curve, Curve]]]:
    """Returns, for each task, the supervised curve of each seed and the one with a reward."""
    found: dict[str, list[tuple[Curve, Curve]]] = {}
    for seed in sorted(folder.glob("*/*")):
        supervised, rewarded = (evaluations(seed / stage) for stage in STAGES)
        for task in sorted(supervised):
            found.setdefault(task, []).append((supervised[task], rewarded[task]))
    return found


def summary(values: list[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{deviation}"


def main(folder: Path) -> None:
    found = curves(folder)
    if not found:
        sys.exit(f"{folder} has no runs: make them by\n\n{COMMANDS}")
    lines = []
    for task, pairs in found.items():
        at_first = [first[min(first)] for first, _ in pairs]
        supervised = [first[max(first)] for first, _ in pairs]
        rewarded = [second[max(second)] for _, second in pairs]
        numbers = " | ".join(map(summary, (at_first, supervised, rewarded)))
        lines.append(f"| {task} | {len(pairs)} | {numbers} |\n")
    (HERE / "task_curves.md").write_text(
        "# What the small policy learns of the tasks\n\n"
        "Greedy pass@1 of held-out questions, mean ± deviation. A policy of 0.35M parameters (of Rush "
        "Hour 0.64M, from scratch) is taught by worked solutions, and goes on with GRPO and the "
        "graders of the tasks. Arithmetic, countdown, letter counting and sorting are in one "
        "batch. Made on a CPU by\n\n"
        f"{COMMANDS}\n"
        "![Greedy pass@1 over steps for each task](task_curves.png)\n\n"
        "| task | seeds | at first | after supervised training | after GRPO |\n|---|---|---|---|---|\n"
        + "".join(lines)
    )
    draw(found)


def draw(found: dict[str, list[tuple[Curve, Curve]]]) -> None:
    """Draws one panel per task, with a line for each seed in each of the two stages."""
    figure = Figure(figsize=(2.4 * len(found), 2.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(found), sharey=True, squeeze=False)
    for axis, (task, pairs) in zip(axes.flat, found.items(), strict=True):
        for first, second in pairs:
            end = max(first)
            axis.plot(list(first), list(first.values()), color="#8a8a8a", linewidth=1.1)
            steps = [end + step for step in second]
            axis.plot(steps, list(second.values()), color="#1f4e8c", linewidth=1.1)
            axis.axvline(end, color="#cccccc", linewidth=0.6, linestyle=":")
        axis.set_title(task.replace("_", " "), fontsize=9)
        axis.set_ylim(0, 1.02)
        axis.tick_params(labelsize=7)
    axes[0, 0].plot([], [], color="#8a8a8a", label="supervised")
    axes[0, 0].plot([], [], color="#1f4e8c", label="GRPO")
    axes[0, 0].legend(fontsize=7, loc="lower right", frameon=False)
    figure.supxlabel("step", fontsize=8)
    figure.supylabel("greedy pass@1, held out", fontsize=8)
    figure.savefig(HERE / "task_curves.png", dpi=130)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m experiments.task_curves FOLDER")
    main(Path(sys.argv[1]))
