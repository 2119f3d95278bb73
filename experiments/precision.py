"""A table and a picture of corrections whose samples come from weights of less precision.

    python -m experiments.precision outputs/precision

reads the sweeps in this folder and writes experiments/precision.md, which has the commands of the
sweeps (`COMMANDS`), and precision.png.
"""

import statistics
import sys
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from experiments.staleness import measured
from rl4p.tools.comparison.measures import Metric, chosen_metric
from rl4p.tools.comparison.statistics import iqm
from rl4p.tools.runs import Run, read_folders

HERE = Path(__file__).parent
COMMANDS = """\
    COMMON="experiment=arithmetic_stale collector.lag=0 rollout.dtype=bfloat16 seed=0,1,2,3,4"
    COMMON="$COMMON rollout.kv_cache_dtype=int8 evaluation.every=5 samples.every=0"
    COMMON="$COMMON checkpoint.every=0 tracker=none"
    python -m rl4p.train -m $COMMON hydra.sweep.dir=outputs/precision/corrected \\
        update=reinforce correction=none,token_truncate,token_mask,sequence_mask
    python -m rl4p.train -m $COMMON hydra.sweep.dir=outputs/precision/centered \\
        update=score_centering rollout.alternatives=16
    python -m experiments.precision outputs/precision
"""
TEXT = """\
The weights that sample are bfloat16, their keys and values have 8 bits, and the trainer has
float32. The task is that of [stale samples](staleness.md): the default one with twice the learning
rate and half the prompts (16 x 8 fresh samples), 40 steps, one update in each. `token_truncate` is
truncated importance sampling, `token_mask` IcePop. `score_centering` has the sampler's 16 most
probable tokens.
"""
COLUMNS = """\
The gap is the mean of `rollout/logprob_gap_mean` over all steps, in nats per token; the effective
sample size is that of `update/ess`, and the least one of any step. At this gap there is next to
nothing to correct: the intervals overlap, and five seeds show no difference between the methods.
[Stale samples](staleness.md) show one.
"""


def method(run: Run) -> str:
    """Returns the name of the loss or the correction of a run."""
    if run.choices["update"] == "score_centering":
        return "update=score_centering"
    return f"correction={run.choices['correction']}"


def of_steps(runs: list[Run], name: str) -> list[float]:
    """Returns the values of a metric at all steps that have it."""
    return [row[name] for run in runs for row in run.rows if name in row]


def main(folder: Path) -> None:
    runs, left_out = read_folders([folder])
    for run in left_out:
        print(f"{run.name} is left out: {run.reason}.", file=sys.stderr)
    metric = chosen_metric(runs, None)
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(method(run), []).append(run)
    lines = []
    for name, each in found.items():
        value, low, high = measured(each, metric)
        gap = statistics.mean(of_steps(each, "rollout/logprob_gap_mean"))
        ess = of_steps(each, "update/ess")
        lines.append(
            f"| `{name}` | {len(each)} | {value:.3f} [{low:.3f}, {high:.3f}] "
            f"| {min(metric.of(run) for run in each):.3f} "
            f"| {gap:.4f} | {statistics.mean(ess):.4f} | {min(ess):.4f} |\n"
        )
    (HERE / "precision.md").write_text(
        f"# Corrections for a sampler of less precision\n\n{TEXT}\n"
        "The table shows the interquartile mean of the greedy pass@1 on the held-out sums after "
        f"the last step, with its 95 % interval. Made by\n\n{COMMANDS}\n"
        "![Greedy pass@1 over steps of each method](precision.png)\n\n"
        "| method | seeds | pass@1 | worst seed | gap | effective sample size | least |\n"
        f"|---|---|---|---|---|---|---|\n{''.join(lines)}\n{COLUMNS}"
    )
    draw(found, metric)


def draw(found: dict[str, list[Run]], metric: Metric) -> None:
    """Draws a panel for each method: the seeds, and their interquartile mean as a thick line."""
    figure = Figure(figsize=(2.6 * len(found), 2.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(found), sharey=True)
    for axes, (name, runs) in zip(panels, found.items(), strict=True):
        curves = [metric.series(run) for run in runs]
        for curve in curves:
            axes.plot(list(curve), list(curve.values()), color="#9db8d9", linewidth=0.8)
        middle = [iqm([curve[step] for curve in curves]) for step in curves[0]]
        axes.plot(list(curves[0]), middle, color="#1f4e8c", linewidth=1.6)
        axes.set_title(name.replace("=", "=\n"), fontsize=9)
        axes.set_ylim(0, 1.02)
        axes.grid(alpha=0.25)
    figure.supxlabel("step", fontsize=9)
    panels[0].set_ylabel("greedy pass@1, held out", fontsize=9)
    figure.savefig(HERE / "precision.png", dpi=130)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Name the folder of the sweeps: python -m experiments.precision FOLDER")
    main(Path(sys.argv[1]))
