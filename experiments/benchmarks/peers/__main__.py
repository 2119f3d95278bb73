"""Compares rl4p with TRL and Tunix on the same weights, prompts and cores.

    sh experiments/benchmarks/peers/setup.sh ENVIRONMENTS        # once: installs the pinned peers
    python -m experiments.benchmarks.peers ENVIRONMENTS

Prints two tables for each workload (`workload.py`). Writes them to `experiments/benchmarks/`, with
a picture and all measurements: peers.md, peers.png, peers.json. The engines take turns in rounds,
so that a slow minute of the machine does not slow down one engine only. A run takes half an hour,
in which nothing else may run. `--workloads uniform` measures that workload again and keeps the
other one's results if they have the same date and machine.
"""

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

import matplotlib.pyplot as plt

from experiments.benchmarks.peers.workload import medians

HERE = Path(__file__).parent
WORKLOADS = ("uniform", "longtail")
# For each measurement: the name of the engine, its environment (None: this one), its script.
ENGINES = {
    "rollout": [
        ("rl4p", None, "rl4p_generate.py"),
        ("transformers", "trl", "hf_generate.py"),
        ("Tunix", "tunix", "tunix_generate.py"),
    ],
    "step": [
        ("rl4p", None, "rl4p_grpo.py"),
        ("TRL", "trl", "trl_grpo.py"),
        ("Tunix", "tunix", "tunix_grpo.py"),
    ],
}
SHIM = "mkl_avx512.so"  # lets MKL use AVX-512 on a processor that is not Intel's (setup.sh)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("environments", type=Path, help="the folder that setup.sh made")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=WORKLOADS)
    parser.add_argument("--rounds", type=int, default=3, help="how often each engine is started")
    parser.add_argument("--steps", type=int, default=3, help="measured of each, after two")
    parser.add_argument("--out", type=Path, default=HERE.parent)
    options = parser.parse_args()
    found = {"machine": machine(), "date": str(date.today()), "workloads": {}}
    record = options.out / "peers.json"
    if len(options.workloads) < len(WORKLOADS) and record.exists():  # the others stay
        before = json.loads(record.read_text())
        if [before[key] for key in ("machine", "date")] == [found["machine"], found["date"]]:
            found["workloads"] = before["workloads"]
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.workloads:
            checkpoint = Path(scratch) / name
            call(None, "workload.py", f"--workload={name}", f"--checkpoint={checkpoint}")
            found["workloads"][name] = measure(name, checkpoint, options)
    report = f"{HEAD}\n\n{found['machine']}, {found['date']}.\n" + "".join(
        section(name, rows) for name, rows in found["workloads"].items()
    )
    print(report)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "peers.md").write_text(report)
    record.write_text(json.dumps(found, indent=1) + "\n")
    draw(found["workloads"], options.out / "peers.png")


def measure(workload: str, checkpoint: Path, options: argparse.Namespace) -> dict:
    """Returns the engines' summaries, and the floor at the mean length of rl4p's responses."""
    found: dict = {"rollout": {}, "step": {}}
    printed: dict = {}
    for turn, (kind, engines) in itertools.product(range(options.rounds), ENGINES.items()):
        for name, environment, script in with_shim(engines, options.environments):
            preload = options.environments / SHIM if name.endswith("shim") else None
            python = environment and options.environments / environment / "bin" / "python"
            arguments = (f"--workload={workload}", f"--checkpoint={checkpoint}", "--warmup=2")
            lines = call(python, script, *arguments, f"--steps={options.steps}", preload=preload)
            printed.setdefault((kind, name), []).append(lines)
            print(f"{workload} {kind} {name}, {turn}: {lines[-1]}", file=sys.stderr, flush=True)
    for (kind, name), rounds in printed.items():
        found[kind][name] = joined(rounds)
    logprobs = [row["check_logprob"] for rows in found.values() for row in rows.values()]
    if max(logprobs) - min(logprobs) > 1e-4:
        raise SystemExit(f"The engines do not agree on the weights: {logprobs}")
    ours = found["step"]["rl4p"]
    mean = ours["completion_tokens"] / ours["sequences"]
    floor = ("--floor", f"--mean-length={mean}")
    found["floor"] = call(None, "workload.py", f"--workload={workload}", *floor)[-1]
    return found


def joined(rounds: list[list[dict]]) -> dict:
    """Returns the summary of an engine over all rounds; the last line of a round is its summary."""
    rows = [row for lines in rounds for row in lines[:-1]]
    peak = max(lines[-1]["peak_rss_mb"] for lines in rounds)
    return rounds[-1][-1] | medians(rows) | {"peak_rss_mb": peak}


def with_shim(engines: list, environments: Path) -> list:
    """Returns the engines; torch's again with the shim if the processor is not Intel's."""
    intel = "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    if intel or not (environments / SHIM).exists():
        return engines
    shimmed = [(f"{name}, shim", env, script) for name, env, script in engines if env == "trl"]
    return engines + shimmed


def call(python: Path | None, script: str, *words: str, preload: Path | None = None) -> list[dict]:
    """Runs a script of this folder and returns the JSON lines that it prints."""
    environment = dict(os.environ)
    if preload is not None:
        environment["LD_PRELOAD"] = str(preload)
    if python is not None:
        environment.pop("PYTHONPATH", None)
    command = [str(python or sys.executable), str(HERE / script), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def machine() -> str:
    models = [
        line.split(":")[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{models[0]}, {min(2, len(models))} cores, Python {platform.python_version()}"


HEAD = """# rl4p beside TRL and Tunix

GRPO steps on two CPU cores in float32, with identical weights, prompts, groups, reward and number
of updates. [peers/README.md](peers/README.md) has the workloads and the settings of each engine.
Times are medians in seconds, over rounds in which the engines take turns. Made by

    sh experiments/benchmarks/peers/setup.sh ENVIRONMENTS
    python -m experiments.benchmarks.peers ENVIRONMENTS

The floor is the time of the useful matrix products at this machine's rate (numpy's best on
1024 x 1024). `times` is an engine's time per token, relative to rl4p.

![Seconds of a step](peers.png)"""


def section(workload: str, found: dict) -> str:
    """Returns the two tables of one workload."""
    floor = found["floor"]
    text = (
        f"\n## {workload}\n\n{floor['rollout_gflop']} GFLOP of rollout and "
        f"{floor['update_gflop']} of update at {floor['matmul_gflops']} GFLOP/s.\n"
    )
    for kind, title in (("rollout", "Rollout alone"), ("step", "Whole step")):
        rows = found[kind]
        ours = rows["rl4p"]["tokens_per_s"]
        text += (
            f"\n| {title} | seconds | best | its update | tokens/s | times | of the floor "
            "| peak MB |\n|---|---|---|---|---|---|---|---|\n"
        )
        for name, row in rows.items():
            seconds, best = row[f"{kind}_s"], row[f"{kind}_s_best"]
            update = "" if kind == "rollout" else f"{seconds - row['rollout_s']:.2f}"
            # Lengths differ between engines: the floor is scaled to the engine's own tokens.
            mine = rows["rl4p"]["completion_tokens"]
            share = floor[f"{kind}_floor_s"] / seconds * row["completion_tokens"] / mine
            text += (
                f"| {name} {row['version']} | {seconds:.2f} | {best:.2f} | {update} "
                f"| {row['tokens_per_s']:,.0f} | {ours / row['tokens_per_s']:.2f} | {share:.0%} "
                f"| {row['peak_rss_mb']:,} |\n"
            )
    return text


def draw(workloads: dict, path: Path) -> None:
    """Draws one bar per engine for each workload: the rollout, and the rest of the step."""
    figure, axes = plt.subplots(1, len(workloads), figsize=(4.2 * len(workloads), 3), squeeze=False)
    for axis, (name, found) in zip(axes[0], workloads.items(), strict=True):
        rows = found["step"]
        rollout = [row["rollout_s"] for row in rows.values()]
        rest = [row["step_s"] - row["rollout_s"] for row in rows.values()]
        axis.bar(list(rows), rollout, color="#4c78a8", label="rollout")
        axis.bar(list(rows), rest, bottom=rollout, color="#f58518", label="rest of the step")
        for x, row in enumerate(rows.values()):
            axis.text(x, row["step_s"], f"{row['step_s']:.1f}", ha="center", va="bottom")
        floor = found["floor"]["step_floor_s"]
        axis.axhline(floor, color="black", linewidth=0.8, linestyle="--", label="floor")
        axis.set(title=name, ylabel="seconds a step")
        axis.margins(y=0.12)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
