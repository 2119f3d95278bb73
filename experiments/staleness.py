"""A table and a picture of what losses and corrections learn from stale samples.

    python -m experiments.staleness outputs/staleness

reads the sweeps in this folder and writes experiments/staleness.md, which has the commands of the
sweeps (`COMMANDS`), and staleness.png. Both show the greedy pass@1 after the last step: its
interquartile mean over the seeds and the 95 % interval, as `python -m rl4p.compare` computes them.
"""

import sys
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rl4p.tools.comparison.measures import Metric, chosen_metric
from rl4p.tools.comparison.statistics import interval, iqm
from rl4p.tools.runs import Run, read_folders

HERE = Path(__file__).parent
COMMANDS = """\
    COMMON="experiment=arithmetic_stale collector.lag=0,1,2,4 update.minibatches=1,4 seed=0,1,2,3,4"
    COMMON="$COMMON samples.every=0 checkpoint.every=0 tracker=none"
    python -m rl4p.train -m $COMMON hydra.sweep.dir=outputs/staleness/coupled \\
        update=ppo,cispo,gspo,dppo update.old_policy=behaviour
    python -m rl4p.train -m $COMMON hydra.sweep.dir=outputs/staleness/decoupled \\
        correction=none,token_truncate,token_mask,sequence_truncate,sequence_mask
    python -m experiments.staleness outputs/staleness
"""
TASK = """\
The task is the default one (three-digit sums, a policy of 0.35M parameters that forgets carries,
initial pass@1 0.117), made harder: twice the learning rate, half the prompts (16 x 8 samples), 40
steps. With `collector=lagged`, the samples of step n come from the weights of step n - lag,
exactly. With 4 updates a step, the batch is divided into 4 minibatches.

*Ratio to the sampler* is `update.old_policy=behaviour`: the ratio of the loss is the full
importance weight (coupled). *Decoupled* losses compare with the policy at the start of the step,
and the correction weighs for the difference between that policy and the sampler; `none` ignores
it. All other options are those of their YAML files, so a clip that is meant for fresh samples
(`gspo`: 3e-4) leaves out most stale ones.
"""
LAGS, UPDATES = (0, 1, 2, 4), (1, 4)

Cells = dict[tuple[str, int, int], list[Run]]


def method(run: Run) -> str:
    """Returns the name of the loss and the correction of a run."""
    update, correction = run.choices["update"], run.choices["correction"]
    if run.config["update"]["old_policy"] == "behaviour":
        return f"`{update}`, ratio to the sampler"
    return f"`{update}` decoupled, correction `{correction}`"


def cells(runs: list[Run]) -> Cells:
    """Returns the runs of each method, lag and number of updates in a step."""
    found: Cells = {}
    for run in runs:
        key = (method(run), run.config["collector"]["lag"], run.config["update"]["minibatches"])
        found.setdefault(key, []).append(run)
    return found


def measured(runs: list[Run], metric: Metric) -> tuple[float, float, float]:
    """Returns the interquartile mean of the last value, and the ends of its interval."""
    values = [metric.of(run) for run in runs]
    bounds = interval(values, resolution=metric.resolution(runs), bounds=(0.0, 1.0))
    return iqm(values), *(bounds or (min(values), max(values)))


def main(folder: Path) -> None:
    runs, left_out = read_folders([folder])
    for run in left_out:
        print(f"{run.name} is left out: {run.reason}.", file=sys.stderr)
    metric, found = chosen_metric(runs, None), cells(runs)
    methods = list(dict.fromkeys(name for name, _, _ in found))
    seeds = sorted({len(each) for each in found.values()})
    heads = [f"lag {lag}, {n} update{'s' * (n > 1)}" for n in UPDATES for lag in LAGS]
    lines = [f"| method | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for name in methods:
        texts = []
        for n in UPDATES:
            for lag in LAGS:
                value, low, high = measured(found[name, lag, n], metric)
                texts.append(f"{value:.3f} [{low:.3f}, {high:.3f}]")
        lines.append(f"| {name} | {' | '.join(texts)} |")
    (HERE / "staleness.md").write_text(
        "# Losses and corrections on stale samples\n\n"
        f"{TASK}\n"
        "The interquartile mean of the greedy pass@1 on the held-out sums after the last step, "
        f"with its 95 % interval; seeds for each: {' or '.join(map(str, seeds))}. Made by\n\n"
        f"{COMMANDS}\n"
        "![Greedy pass@1 over the lag of each method](staleness.png)\n\n" + "\n".join(lines) + "\n"
    )
    draw(found, methods, metric)


def draw(found: Cells, methods: list[str], metric: Metric) -> None:
    """Draws pass@1 over the lag, with a panel for each number of updates."""
    figure = Figure(figsize=(9.6, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(UPDATES), sharey=True)
    for axes, n in zip(panels, UPDATES, strict=True):
        for number, name in enumerate(methods):
            points = [measured(found[name, lag, n], metric) for lag in LAGS]
            middle = [value for value, _, _ in points]
            low, high = ([point[end] for point in points] for end in (1, 2))
            shift = 0.04 * (number - len(methods) / 2)
            axes.errorbar(
                [lag + shift for lag in LAGS],
                middle,
                yerr=[
                    [value - end for value, end in zip(middle, low, strict=True)],
                    [end - value for value, end in zip(middle, high, strict=True)],
                ],
                color=f"C{number}",
                linestyle="-" if "sampler" in name else "--",
                linewidth=1.3,
                elinewidth=0.7,
                marker="o",
                markersize=3,
                label=name.replace("`", ""),
            )
        axes.set_title(f"{n} update{'s' * (n > 1)} a step", fontsize=10)
        axes.set_xlabel("lag of the samples (steps)")
        axes.set_xticks(LAGS)
        axes.grid(alpha=0.25)
    panels[0].set_ylabel("greedy pass@1, held out")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3,
                  frameon=False, fontsize=8)  # fmt: skip
    figure.savefig(HERE / "staleness.png", dpi=150)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Name the folder of the sweeps: python -m experiments.staleness FOLDER")
    main(Path(sys.argv[1]))
