"""A table and a picture of the learning curves of every estimator and loss on the default task.

    python -m experiments.catalogue outputs/catalogue/*/     # the folders of the sweeps

reads the runs in these folders and writes experiments/catalogue.md, which begins with the commands
of the sweeps (`COMMANDS`), and catalogue.png.
"""

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

HERE = Path(__file__).parent
METRIC = "eval/arithmetic/pass_at_1"
BAR = 0.8
GROUPS = ("advantage", "update", "critic", "correction", "kl", "entropy", "optimizer", "experiment")
COMMANDS = """\
    COMMON="steps=40 evaluation.every=10 samples.every=0 checkpoint.every=0 tracker=none seed=0,1,2"
    python -m rl4p.train -m $COMMON hydra.sweep.dir=outputs/catalogue/advantages \\
        advantage=grpo,dr_grpo,batch_std,global_norm,dapo_mix,rloo,opo,gpg,pass_k,gdpo,maxrl
    python -m rl4p.train -m $COMMON hydra.sweep.dir=outputs/catalogue/others \\
        advantage=reinforce,reinforce_pp,reinforce_pp_baseline,remax,running_baseline,\\
    optimal_token_baseline,maxent_grpo,seed_grpo
    python -m rl4p.train -m $COMMON hydra.sweep.dir=outputs/catalogue/critic \\
        advantage=gae critic=shared,separate
    python -m rl4p.train -m $COMMON hydra.sweep.dir=outputs/catalogue/updates \\
        update=cispo,clip_cov,dppo,dro,gmpo,gspo,kimi,kl_cov,luspo,m2po,raft,reinforce,sapo,topr,vespo
    python -m rl4p.train -m $COMMON hydra.sweep.dir=outputs/catalogue/pairs \\
        advantage=preference update=dpo
    python -m rl4p.train -m $COMMON hydra.sweep.dir=outputs/catalogue/own_samples \\
        advantage=constant update=sft
    python -m rl4p.train -m $COMMON hydra.sweep.dir=outputs/catalogue/sft experiment=arithmetic_sft
    python -m rl4p.train tracker=none hydra.run.dir=outputs/teacher
    python -m rl4p.export run=outputs/teacher out=outputs/teacher_policy
    python -m rl4p.train -m $COMMON hydra.sweep.dir=outputs/catalogue/distill \\
        experiment=arithmetic_distill teacher.path=outputs/teacher_policy
    python -m experiments.catalogue outputs/catalogue/*/
"""


def runs(folders: list[Path]) -> dict[str, list[dict[str, Any]]]:
    """Returns, for each choice of options, the evaluations of each seed."""
    found = defaultdict(list)
    for file in sorted(path for folder in folders for path in folder.glob("*/summary.json")):
        summary = json.loads(file.read_text())
        if summary["status"] != "finished":
            print(f"{file.parent} is left out: {summary['status']}", file=sys.stderr)
            continue
        overrides = yaml.safe_load((file.parent / ".hydra" / "overrides.yaml").read_text())
        chosen = [x for x in overrides if x.split("=")[0] in GROUPS]
        lines = (file.parent / "metrics.jsonl").read_text().splitlines()
        rows = [row for row in map(json.loads, lines) if METRIC in row]
        found[" ".join(chosen)].append({row["step"]: row[METRIC] for row in rows})
    return dict(found)


def line(name: str, curves: list[dict[int, float]]) -> tuple[float, str]:
    last = [curve[max(curve)] for curve in curves]
    best = [max(curve.values()) for curve in curves]
    reached = [min((s for s, x in curve.items() if x >= BAR), default=None) for curve in curves]
    deviation = f" ± {statistics.stdev(last):.3f}" if len(last) > 1 else ""  # none of one seed
    steps = "never" if None in reached else ", ".join(map(str, reached))
    return statistics.mean(last), (
        f"| `{name}` | {statistics.mean(last):.3f}{deviation} | {min(best):.3f} | {steps} |"
    )


def main(folders: list[Path]) -> None:
    found = runs(folders)
    if not found:
        sys.exit("No finished run in these folders.")
    lines = sorted((line(name, curves) for name, curves in found.items()), reverse=True)
    seeds = sorted({len(curves) for curves in found.values()})
    steps = sorted({max(curve) for curves in found.values() for curve in curves})
    (HERE / "catalogue.md").write_text(
        "# What each estimator and each loss learns\n\n"
        "The default task (three-digit sums, a policy of 0.35M parameters that forgets carries, "
        f"initial pass@1 0.117), {' or '.join(map(str, steps))} steps, seeds for each: "
        f"{' or '.join(map(str, seeds))}; all other options as in their YAML files. A curve shows "
        "that a method learns on this task; it does not rank the methods, because all use one "
        "learning rate. With one update per step the ratio is 1: losses that differ from `ppo` "
        "(the `advantage=grpo` line) only off-policy have exactly its digits. Made by\n\n"
        f"{COMMANDS}\n"
        "![Greedy pass@1 over steps of every estimator and loss](catalogue.png)\n\n"
        f"| chosen | pass@1 after the last step, mean ± deviation | least best of a seed | "
        f"steps to {BAR} by seed |\n|---|---|---|---|\n" + "".join(f"{text}\n" for _, text in lines)
    )
    draw(found)


def draw(found: dict[str, list[dict[int, float]]]) -> None:
    """Draws one panel per choice, with the seeds as thin lines and their mean as a thick one."""
    columns = 6
    rows = -(-len(found) // columns)
    figure = Figure(figsize=(2.1 * columns, 1.5 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axis in axes.flat[len(found) :]:
        axis.axis("off")
    for axis, (name, curves) in zip(axes.flat, sorted(found.items()), strict=False):
        for curve in curves:
            axis.plot(list(curve), list(curve.values()), color="#9db8d9", linewidth=0.8)
        steps = sorted(set.intersection(*map(set, curves)))
        mean = [statistics.mean(curve[step] for curve in curves) for step in steps]
        axis.plot(steps, mean, color="#1f4e8c", linewidth=1.6)
        axis.axhline(BAR, color="#999999", linewidth=0.6, linestyle=":")
        axis.set_title(name.replace("advantage=", "").replace("update=", ""), fontsize=8)
        axis.set_ylim(0, 1.02)
        axis.tick_params(labelsize=7)
    figure.supxlabel("step", fontsize=8)
    figure.supylabel("greedy pass@1, held out", fontsize=8)
    figure.savefig(HERE / "catalogue.png", dpi=130)


if __name__ == "__main__":
    main([Path(folder) for folder in sys.argv[1:]])
