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
    supervised() {
      python -m rl4p.train experiment=$1 seed=$2 evaluation.every=30 samples.every=0 tracker=none \\
        hydra.run.dir=outputs/task_curves/$1/$2/sft
    }
    rewarded() {
      at=outputs/task_curves/$1/$2
      python -m rl4p.export run=$at/sft out=$at/policy
      python -m rl4p.train experiment=$3 seed=$2 evaluation.every=20 samples.every=0 tracker=none \\
        hydra.run.dir=$at/grpo model=pretrained model.path=$at/policy
    }
    for seed in 0 1 2; do
      supervised mixture_sft $seed && rewarded mixture_sft $seed mixture_grpo
      supervised letter_counting_sft $seed
    done
    supervised rush_hour_sft 0 && rewarded rush_hour_sft 0 rush_hour_tiny_grpo
    python -m experiments.task_curves outputs/task_curves
"""

Curve = dict[int, float]


def evaluations(run: Path) -> dict[str, Curve]:
    """Returns the greedy pass@1 of each task by step."""
    found: dict[str, Curve] = {}
    if not run.is_dir():
        return found
    for row in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        for name, value in row.items():
            match name.split("/"):
                case ["eval", task, "pass_at_1"]:
                    found.setdefault(task, {})[row["step"]] = value
    return found


def curves(folder: Path) -> dict[tuple[str, str], list[tuple[Curve, Curve]]]:
    """Returns the curves of each recipe and task: of each seed, supervised and with a reward.

    The second curve is empty if the recipe is not continued with a reward.
    """
    found: dict[tuple[str, str], list[tuple[Curve, Curve]]] = {}
    for seed in sorted(folder.glob("*/*")):
        supervised, rewarded = (evaluations(seed / stage) for stage in STAGES)
        for task in sorted(supervised):
            pair = (supervised[task], rewarded.get(task, {}))
            found.setdefault((seed.parent.name, task), []).append(pair)
    return dict(sorted(found.items(), key=lambda item: item[0][0] != "mixture_sft"))


def last(curve: Curve) -> float:
    return curve[max(curve)]


def summary(values: list[float]) -> str:
    if not values:
        return ""
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{deviation}"


def main(folder: Path) -> None:
    found = curves(folder)
    if not found:
        sys.exit(f"{folder} has no runs: make them by\n\n{COMMANDS}")
    lines = []
    for (recipe, task), pairs in found.items():
        stages = (
            [first[min(first)] for first, _ in pairs],
            [last(first) for first, _ in pairs],
            [last(second) for _, second in pairs if second],
        )
        numbers = " | ".join(map(summary, stages))
        lines.append(f"| {task} | `{recipe}` | {len(pairs)} | {numbers} |\n")
    (HERE / "task_curves.md").write_text(
        "# What the small policy learns of the tasks\n\n"
        "Greedy pass@1 of held-out questions, mean ± deviation. A policy is taught by worked "
        "solutions, and goes on with GRPO and the graders of the tasks. The policy of the package, "
        "with 0.35M parameters, learns four tasks in one batch (`mixture_sft`). Letter counting "
        "alone and Rush Hour are learned from scratch, with 0.64M parameters.\n\n"
        f"{COMMANDS}\n"
        "![Greedy pass@1 over steps for each task](task_curves.png)\n\n"
        "| task | recipe | seeds | at first | after supervised training | after GRPO |\n"
        "|---|---|---|---|---|---|\n" + "".join(lines) + "\n"
        "Of the letters in the mixture, the small policy learns little: it has seen only digits "
        "before, and the share of the most frequent answer is 0.375. Alone, a policy from scratch "
        "learns to count to four, and misses the few words with more of the letter. Another kind "
        "of processor rounds in another way, and gives slightly other numbers.\n"
    )
    draw(found)


def draw(found: dict[tuple[str, str], list[tuple[Curve, Curve]]]) -> None:
    """Draws one panel per recipe and task, with a line for each seed in each of the stages."""
    figure = Figure(figsize=(2.2 * len(found), 2.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(found), sharey=True, squeeze=False)
    for axis, ((recipe, task), pairs) in zip(axes.flat, found.items(), strict=True):
        for first, second in pairs:
            end = max(first)
            axis.plot(list(first), list(first.values()), color="#8a8a8a", linewidth=1.1)
            if second:
                steps = [end + step for step in second]
                axis.plot(steps, list(second.values()), color="#1f4e8c", linewidth=1.1)
                axis.axvline(end, color="#cccccc", linewidth=0.6, linestyle=":")
        alone = "\nalone" if ("mixture_sft", task) in found and recipe != "mixture_sft" else ""
        axis.set_title(task.replace("_", " ") + alone, fontsize=9)
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
