"""A table and a picture of the collectors and sources on the default task.

    python -m experiments.collection outputs/collection

reads the sweeps in this folder and writes experiments/collection.md, which begins with the commands
of the sweeps (`COMMANDS`), and collection.png.
"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

HERE = Path(__file__).parent
BAR = 0.9
NAMES = ("default", "async", "dynamic", "replay", "curriculum")
COMMANDS = """\
    COMMON="evaluation.every=1 samples.every=0 checkpoint.every=0 tracker=none seed=0,1,2"
    python -m rl4p.train -m $COMMON hydra.sweep.dir=outputs/collection/default
    for NAME in async dynamic replay curriculum; do
      python -m rl4p.train -m $COMMON experiment=arithmetic_$NAME \\
        hydra.sweep.dir=outputs/collection/$NAME
    done
    python -m experiments.collection outputs/collection
"""

Rows = list[dict[str, Any]]


def runs(folder: Path) -> list[Rows]:
    """Returns the metrics of the finished runs of a sweep, each with its groups per step."""
    found = []
    for file in sorted(folder.glob("*/summary.json")):
        if json.loads(file.read_text())["status"] == "finished":
            lines = (file.parent / "metrics.jsonl").read_text().splitlines()
            found.append([json.loads(line) for line in lines])
    return found


def curve(rows: Rows) -> dict[int, float]:
    """Returns the greedy pass@1 by step, as the mean over the tasks."""
    found = {}
    for row in rows:
        values = [x for name, x in row.items() if name.startswith("eval/") and "pass_at_1" in name]
        if values:
            found[row["step"]] = statistics.mean(values)
    return found


def until(rows: Rows, prompts_per_step: int = 32) -> dict[str, float] | None:
    """Returns the steps and the sampled prompts until pass@1 is `BAR`, or None."""
    steps = [step for step, value in curve(rows).items() if value >= BAR]
    if not steps:
        return None
    sampled = [row.get("collector/sampled", prompts_per_step) for row in rows if row["step"] > 0]
    return {"steps": steps[0], "prompts": sum(sampled[: steps[0]])}


def line(name: str, found: list[Rows]) -> str:
    """Returns the line of the table for the runs of one recipe."""
    last = [list(curve(rows).values())[-1] for rows in found]
    deviation = f" ± {statistics.stdev(last):.3f}" if len(last) > 1 else ""
    reached = [until(rows) for rows in found]

    def each(key: str, scale: int = 1) -> str:
        return ", ".join("never" if x is None else f"{x[key] * scale:,.0f}" for x in reached)

    recipe = "the default" if name == "default" else f"`arithmetic_{name}`"
    return (
        f"| {recipe} | {statistics.mean(last):.3f}{deviation} | {each('steps', 32 * 8)} | "
        f"{each('prompts')} |"
    )


def main(folder: Path) -> None:
    found = {name: runs(folder / name) for name in NAMES}
    if missing := [name for name, each in found.items() if not each]:
        sys.exit(f"No finished run of {', '.join(missing)} in {folder}.")
    lines = "".join(f"{line(name, each)}\n" for name, each in found.items())
    seeds = sorted({len(each) for each in found.values()})
    (HERE / "collection.md").write_text(
        "# Collectors and sources on sums\n\n"
        "The default task: three-digit sums, with the policy of the package, 0.35M parameters, "
        "that forgets carries. `arithmetic_curriculum` trains on 1,024 sums, the others on 16,384. "
        "Seeds for each: "
        f"{' or '.join(map(str, seeds))}. Made by\n\n{COMMANDS}\n"
        "![Greedy pass@1 over steps of each recipe](collection.png)\n\n"
        f"| recipe | pass@1 at the end, mean ± deviation | trained sequences until {BAR}, by seed "
        f"| sampled prompts until {BAR}, by seed |\n|---|---|---|---|\n{lines}"
    )
    draw(found)


def draw(found: dict[str, list[Rows]]) -> None:
    """Draws the mean curve of each recipe, and the seeds as thin lines."""
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, (name, each) in enumerate(found.items()):
        curves = [curve(rows) for rows in each]
        for own in curves:
            axes.plot(list(own), list(own.values()), color=f"C{number}", linewidth=0.6, alpha=0.4)
        steps = sorted(set.intersection(*map(set, curves)))
        mean = [statistics.mean(own[step] for own in curves) for step in steps]
        axes.plot(steps, mean, color=f"C{number}", linewidth=1.8, label=name)
    axes.axhline(BAR, color="#999999", linewidth=0.6, linestyle=":")
    axes.set_xlabel("step")
    axes.set_ylabel("greedy pass@1, held out")
    axes.set_ylim(0, 1.02)
    axes.grid(alpha=0.25)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(HERE / "collection.png", dpi=150)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Name the folder of the sweeps: python -m experiments.collection FOLDER")
    main(Path(sys.argv[1]))
