"""Compares rl4p with TRL and Tunix on the same weights, prompts and cores.

    sh experiments/benchmarks/peers/setup.sh ENVIRONMENTS        # once: installs the pinned peers
    python -m experiments.benchmarks.peers ENVIRONMENTS
    python -m experiments.benchmarks.peers ENVIRONMENTS --pretrained .cache/smollm2 --questions FILE

Prints two tables for each workload (`workload.py`). Writes them to `experiments/benchmarks/`, with
a picture and all measurements: peers.md, peers.png, peers.json. The engines take turns in rounds,
so that a slow minute of the machine does not slow down one engine only. A run takes half an hour,
in which nothing else may run. `--workloads uniform` measures that workload again, and
`--engines rl4p TRL` the engines with these names. The other results stay if they have the same date
and machine.

With `--pretrained`, the folder of SmolLM2-135M-Instruct that `make real` writes, the workload is
`real`: questions of GSM8K, and every engine with its defaults, with its best settings and, where it
can, in bfloat16. Its steps are long: each engine is started once, and two steps are measured after
one. Its results are in peers_real.md, .png and .json, after an hour. `--workloads hybrid` measures
the shape of Qwen3.5 in the same way (peers_hybrid.md, .png and .json).
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
from typing import NamedTuple

import matplotlib.pyplot as plt

from experiments.benchmarks.peers.workload import medians

HERE = Path(__file__).parent
WORKLOADS = ("uniform", "longtail")


class Engine(NamedTuple):
    """An engine with some settings.

    Attributes:
      environment: the name of its environment; None is this one.
      script: the script that measures it.
      words: the settings.
    """

    name: str
    environment: str | None
    script: str
    words: tuple[str, ...] = ()


ENGINES = {
    "rollout": [
        Engine("rl4p", None, "rl4p_generate.py"),
        Engine("transformers", "trl", "hf_generate.py"),
        Engine("Tunix", "tunix", "tunix_generate.py"),
    ],
    "step": [
        Engine("rl4p", None, "rl4p_grpo.py"),
        Engine("TRL", "trl", "trl_grpo.py"),
        Engine("Tunix", "tunix", "tunix_grpo.py"),
    ],
}
NARROW, DEFAULTS = "--dtype=bfloat16", "--settings=default"
REAL_ENGINES = {
    "rollout": [
        *ENGINES["rollout"],
        Engine("rl4p, bfloat16", None, "rl4p_generate.py", (NARROW,)),
        Engine("transformers, bfloat16", "trl", "hf_generate.py", (NARROW,)),
        Engine("rl4p, defaults", None, "rl4p_generate.py", (DEFAULTS,)),
    ],
    "step": [
        Engine("rl4p", None, "rl4p_grpo.py", ("--micro-batch-tokens=1024",)),
        Engine("TRL", "trl", "trl_grpo.py", ("--micro-batch=8",)),
        Engine("Tunix", "tunix", "tunix_grpo.py"),
        Engine("rl4p, bfloat16", None, "rl4p_grpo.py", (NARROW, "--micro-batch-tokens=1024")),
        Engine("TRL, bfloat16", "trl", "trl_grpo.py", (NARROW, "--micro-batch=8")),
        Engine("rl4p, defaults", None, "rl4p_grpo.py", (DEFAULTS,)),
        Engine("TRL, defaults", "trl", "trl_grpo.py", (DEFAULTS,)),
    ],
}
HYBRID_ENGINES = {
    kind: [engine for engine in engines if engine.name in ("rl4p", "TRL", "transformers")]
    for kind, engines in REAL_ENGINES.items()
}
LONG = {"real": REAL_ENGINES, "hybrid": HYBRID_ENGINES}  # workloads whose steps are long
SHIM = "mkl_avx512.so"  # lets MKL use AVX-512 on a processor that is not Intel's (setup.sh)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("environments", type=Path, help="the folder that setup.sh made")
    parser.add_argument("--workloads", nargs="+", choices=(*WORKLOADS, "hybrid"), default=WORKLOADS)
    parser.add_argument("--engines", nargs="+", default=(), help="the names of those to measure")
    parser.add_argument("--rounds", type=int, help="how often each engine is started: 3, or 1")
    parser.add_argument("--steps", type=int, help="how many are measured of each: 3, or 2")
    parser.add_argument("--pretrained", type=Path, help="the folder of SmolLM2: measures `real`")
    parser.add_argument("--questions", type=Path, help="the questions of `real`: train.jsonl")
    parser.add_argument("--out", type=Path, default=HERE.parent)
    options = parser.parse_args()
    if (options.pretrained is None) != (options.questions is None):
        parser.error("--pretrained and --questions belong together")
    real = options.pretrained is not None
    name, workloads = ("peers_real", ("real",)) if real else ("peers", tuple(options.workloads))
    if "hybrid" in workloads:
        if workloads != ("hybrid",):
            parser.error("hybrid is measured alone, since it has a page of its own")
        name = "peers_hybrid"
    lists, alone = LONG.get(workloads[0], ENGINES), workloads[0] in LONG
    rows = [row for x in lists.values() for row in with_shim(x, options.environments, alone=alone)]
    if unknown := set(options.engines) - {row.name for row in rows}:
        names = ", ".join(dict.fromkeys(repr(row.name) for row in rows))
        parser.error(f"--engines has no {', '.join(map(repr, sorted(unknown)))}; it has {names}")
    found = {"machine": machine(), "date": str(date.today()), "workloads": {}}
    record = options.out / f"{name}.json"
    part = bool(options.engines) or (name == "peers" and len(workloads) < len(WORKLOADS))
    if part and record.exists():  # the others stay
        before = json.loads(record.read_text())
        if [before[key] for key in ("machine", "date")] == [found["machine"], found["date"]]:
            found["workloads"] = before["workloads"]
    with tempfile.TemporaryDirectory() as scratch:
        for workload in workloads:
            checkpoint = Path(scratch) / workload
            words = [f"--workload={workload}", f"--checkpoint={checkpoint}"]
            if real:
                words += [f"--pretrained={options.pretrained}", f"--questions={options.questions}"]
            call(None, "workload.py", *words)
            before = found["workloads"].get(workload, {}) if options.engines else {}
            found["workloads"][workload] = measure(workload, checkpoint, options, before)
    heads = {"peers": HEAD, "peers_real": REAL_HEAD, "peers_hybrid": HYBRID_HEAD}
    head = heads[name].format(picture=f"{name}.png")
    report = f"{head}\n\n{found['machine']}, {found['date']}.\n" + "".join(
        section(workload, rows) for workload, rows in found["workloads"].items()
    )
    print(report)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{name}.md").write_text(report)
    record.write_text(json.dumps(found, indent=1) + "\n")
    draw(found["workloads"], options.out / f"{name}.png")


def measure(workload: str, checkpoint: Path, options: argparse.Namespace, before: dict) -> dict:
    """Returns the engines' summaries, and the floor at the mean length of rl4p's responses.

    Args:
      before: the summaries of the engines that are not measured.
    """
    found: dict = {kind: dict(before.get(kind, {})) for kind in ("rollout", "step")}
    printed: dict = {}
    arguments = (f"--workload={workload}", f"--checkpoint={checkpoint}")
    long = workload in LONG
    all_engines = LONG.get(workload, ENGINES)
    warmup, steps, rounds = (1, 2, 1) if long else (2, 3, 3)
    measured = (*arguments, f"--warmup={warmup}", f"--steps={options.steps or steps}")
    turns = range(options.rounds or rounds)
    for turn, (kind, engines) in itertools.product(turns, all_engines.items()):
        with_shims = with_shim(engines, options.environments, alone=long)
        for name, environment, script, words in with_shims:
            if options.engines and name not in options.engines:
                continue
            preload = options.environments / SHIM if name.endswith("shim") else None
            python = environment and options.environments / environment / "bin" / "python"
            lines = call(python, script, *measured, *words, preload=preload)
            printed.setdefault((kind, name), []).append(lines)
            print(f"{workload} {kind} {name}, {turn}: {lines[-1]}", file=sys.stderr, flush=True)
    for (kind, name), rounds in printed.items():
        found[kind][name] = joined(rounds)
    check([row for rows in found.values() for row in rows.values()])
    ours = found["step"]["rl4p"]
    mean = ours["completion_tokens"] / ours["sequences"]
    floor = ("--floor", f"--mean-length={mean}")
    found["floor"] = call(None, "workload.py", *arguments, *floor)[-1]
    return found


def check(rows: list[dict]) -> None:
    """Ends the program if the engines do not have the same weights and prompts."""
    for narrow, most in ((False, 1e-4), (True, 0.05)):
        logprobs = [
            x["check_logprob"] for x in rows if narrow or "bfloat" not in x.get("dtype", "")
        ]
        if max(logprobs) - min(logprobs) > most:
            raise SystemExit(f"The engines do not agree on the weights: {logprobs}")
    if len({row["prompt_tokens"] for row in rows}) > 1:
        raise SystemExit("The engines do not agree on the prompts.")


def joined(rounds: list[list[dict]]) -> dict:
    """Returns the summary of an engine over all rounds; the last line of a round is its summary."""
    rows = [row for lines in rounds for row in lines[:-1]]
    peak = max(lines[-1]["peak_rss_mb"] for lines in rounds)
    return rounds[-1][-1] | medians(rows) | {"peak_rss_mb": peak}


def with_shim(engines: list, environments: Path, *, alone: bool) -> list:
    """Returns the engines; torch's again with the shim if the processor is not Intel's.

    Args:
      alone: whether torch's engines have no row without the shim then, which is slower.
    """
    intel = "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    if intel or not (environments / SHIM).exists():
        return engines
    torch = [engine for engine in engines if engine.environment == "trl"]
    others = [engine for engine in engines if engine not in torch] if alone else engines
    return others + [engine._replace(name=f"{engine.name}, shim") for engine in torch]


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

![Seconds of a step]({picture})"""

REAL_HEAD = """# rl4p beside TRL and Tunix with a real model

GRPO steps of SmolLM2-135M-Instruct on two CPU cores, with identical weights, prompts (eight
questions of GSM8K of different lengths), groups of eight, responses of 128 tokens, reward and
number of updates. [peers/README.md](peers/README.md) has the settings of each engine. Times are
medians in seconds, over rounds in which the engines take turns. Made by

    sh experiments/benchmarks/peers/setup.sh ENVIRONMENTS
    make real
    python -m experiments.benchmarks.peers ENVIRONMENTS --pretrained .cache/smollm2 --questions FILE

FILE is train.jsonl of GSM8K. The floor is the time of the useful matrix products at this machine's
rate in float32 (numpy's best on 1024 x 1024); bfloat16 may be faster. `times` is an engine's time
per token, relative to rl4p in float32.

![Seconds of a step]({picture})"""


HYBRID_HEAD = """# rl4p beside TRL with the shape of Qwen3.5

GRPO steps of 125M random parameters on two CPU cores in float32: 18 layers with gated delta rules
and 6 with attention, eight prompts of 256 tokens, groups of eight, responses of 128 tokens.
[peers/README.md](peers/README.md) has the settings of each engine. Times are medians in seconds.
Made by

    sh experiments/benchmarks/peers/setup.sh ENVIRONMENTS
    python -m experiments.benchmarks.peers ENVIRONMENTS --workloads hybrid

The floor is the time of the useful matrix products at this machine's rate (numpy's best on
1024 x 1024). `times` is an engine's time per token, relative to rl4p.

![Seconds of a step]({picture})"""


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
    most = max(len(found["step"]) for found in workloads.values())
    size = (4.2 * len(workloads) + 1, 1.2 + 0.4 * most)
    figure, axes = plt.subplots(
        1, len(workloads), figsize=size, squeeze=False, layout="constrained"
    )
    for axis, (name, found) in zip(axes[0], workloads.items(), strict=True):
        rows = found["step"]
        rollout = [row["rollout_s"] for row in rows.values()]
        rest = [row["step_s"] - row["rollout_s"] for row in rows.values()]
        axis.barh(list(rows), rollout, color="#4c78a8", label="rollout")
        axis.barh(list(rows), rest, left=rollout, color="#f58518", label="rest of the step")
        for y, row in enumerate(rows.values()):
            axis.text(row["step_s"], y, f" {row['step_s']:.1f}", va="center")
        floor = found["floor"]["step_floor_s"]
        axis.axvline(floor, color="black", linewidth=0.8, linestyle="--", label="floor")
        axis.set(title=name, xlabel="seconds a step")
        axis.invert_yaxis()
        axis.margins(x=0.12)
        axis.spines[["top", "right"]].set_visible(False)
    handles, names = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
