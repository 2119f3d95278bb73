"""A table and a picture of GRPO on reward models that read the policy's first samples.

    python -m experiments.reward_model outputs/reward_model

reads the runs in this folder and writes experiments/reward_model.md, which has the commands of the
runs (`COMMANDS`), and reward_model.png.
"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

HERE = Path(__file__).parent
COMMANDS = """\
    at=outputs/reward_model
    python -m rl4p.generate model=tiny prompts=6000 pairs=true out=$at/pairs.jsonl
    head -n 400 $at/pairs.jsonl >$at/few.jsonl
    reward_model() {
      python -m rl4p.train experiment=preferences_reward data.path=$at/$1.jsonl steps=$2 \\
        samples.every=0 tracker=none hydra.run.dir=$at/$1/model
      python -m rl4p.export run=$at/$1/model out=$at/$1/classifier
    }
    grpo() {
      python -m rl4p.train -m +term@reward.terms.model=classifier seed=0,1,2 steps=120 \\
        reward.terms.model.path=$at/$1/classifier reward.terms.correct.weight=0 \\
        reward.terms.format.weight=0 evaluation.every=10 samples.every=0 checkpoint.every=0 \\
        tracker=none hydra.sweep.dir=$at/$1/$2 "${@:3}"
    }
    reward_model few 25 && grpo few grpo
    reward_model pairs 150 && grpo pairs grpo
    grpo pairs penalised kl=fixed kl.beta=0.1
    python -m experiments.reward_model $at
"""
TEXT = """\
A reward model learns from pairs of the untrained policy's samples, right and wrong ones, and alone
rewards GRPO on the default task. The table compares its score with the true accuracy, greedy
pass@1 on held-out sums. *Right order* is the share of held-out pairs whose right response has the
higher score.

The score rises to the end, and the accuracy only at first: the policy then leaves the samples that
the reward model has learned from (over-optimisation). More pairs move the maximum up; a penalty on
the divergence from the first policy keeps most of it, or delays the fall. Evaluate the true
accuracy often, and keep the best checkpoint.
"""
# By the folder of the reward model and that of the runs.
RUNS = {
    ("few", "grpo"): "400 pairs, 25 steps",
    ("pairs", "grpo"): "2,458 pairs, 150 steps",
    ("pairs", "penalised"): "2,458 pairs, 150 steps, kl.beta=0.1",
}
PASS, SCORE = "eval/arithmetic/pass_at_1", "reward/model"
ORDER = "eval/preferences/preference_accuracy"

Rows = list[dict[str, Any]]


def read(run: Path) -> Rows:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def series(rows: Rows, name: str) -> dict[int, float]:
    return {row["step"]: row[name] for row in rows if name in row}


def main(folder: Path) -> None:
    lines, runs = [], {}
    for (model, grpo), described in RUNS.items():
        order = series(read(folder / model / "model"), ORDER)
        seeds = sorted((folder / model / grpo).glob("*/summary.json"))
        runs[described] = [read(summary.parent) for summary in seeds]
        curves = [series(rows, PASS) for rows in runs[described]]
        scores = [series(rows, SCORE) for rows in runs[described]]
        best = [max(curve, key=lambda step: curve[step]) for curve in curves]
        numbers = (
            f"{order[max(order)]:.3f}",
            f"{statistics.mean(curve[0] for curve in curves):.3f}",
            ", ".join(f"{curve[at]:.3f} ({at})" for curve, at in zip(curves, best, strict=True)),
            ", ".join(f"{curve[max(curve)]:.3f}" for curve in curves),
            ", ".join(f"{score[min(score)]:.2f}" for score in scores),
            ", ".join(f"{score[max(score)]:.2f}" for score in scores),
        )
        lines.append(f"| {described} | {' | '.join(numbers)} |\n")
    (HERE / "reward_model.md").write_text(
        f"# GRPO on a reward model\n\n{TEXT}\nMade by\n\n{COMMANDS}\n"
        "![Accuracy and score over steps for each reward model](reward_model.png)\n\n"
        "| reward model | right order | pass@1 at first | best by seed (step) | last by seed "
        "| score at first | last |\n|---|---|---|---|---|---|---|\n" + "".join(lines)
    )
    draw(runs)


def draw(runs: dict[str, list[Rows]]) -> None:
    """Draws a panel for each reward model: pass@1 and score, a line for each seed."""
    figure = Figure(figsize=(4.2 * len(runs), 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(runs), sharey=True)
    for axes, (described, seeds) in zip(panels, runs.items(), strict=True):
        scores = axes.twinx()
        for rows in seeds:
            curve, score = series(rows, PASS), series(rows, SCORE)
            axes.plot(list(curve), list(curve.values()), color="#1f4e8c", linewidth=1.3)
            scores.plot(list(score), list(score.values()), color="#c46a1b", linewidth=0.9)
        axes.set_title(described, fontsize=10)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("step")
        scores.set_ylim(-2, 4.2)
    panels[0].set_ylabel("greedy pass@1, held out", color="#1f4e8c")
    scores.set_ylabel("mean score of the reward model", color="#c46a1b")
    figure.savefig(HERE / "reward_model.png", dpi=130)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Name the folder of the runs: python -m experiments.reward_model FOLDER")
    main(Path(sys.argv[1]))
