"""Trains one step on the ordinary program of each agent framework, and prints a table.

    python -m experiments.agents [NAME ...]

Each framework gets an environment of its own in .cache/agents, with the packages of rows.py, which
is deleted afterwards (`--keep` keeps it). Each program is a prompt of a step of GRPO, with two
samples, and runs unmodified by `rollout/agent=command`; the policy's texts are written down
(scripted.py). Exit code 1: a program did not run through in one segment, or something else than
its texts was trained.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from experiments.agents.rows import FRAMEWORKS, Framework
from experiments.agents.scripted import question, script

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CACHE = ROOT / ".cache" / "agents"
HEAD = """| program | version | turns | segments | trained tokens | invalid | reason |
|---|---|---|---|---|---|---|"""
# A step is computed once, so that it should be compiled quickly.
QUICKLY = {"XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes"}
STEP = (
    "rollout=agent",
    "rollout.agent._target_=experiments.agents.scripted.ProgramOfRow",
    "rollout.engine._target_=experiments.agents.scripted.Scripted",
    "rollout.episode_seconds=280",
    "rollout.concurrency=2",
    "rollout.max_failed=1",
    "+hooks.compare._target_=experiments.agents.scripted.Compare",
    "trusted_targets=experiments",
    "reward=episode",
    "reward.max_invalid=1",
    "evaluation.term=episode_reward",
    "evaluation.every=0",
    "evaluation.rows=1",
    "data=jsonl",
    "data.metadata_keys=[command]",
    "steps=1",
    "group_size=2",
    "model=scratch",
    "model._target_=experiments.agents.scripted.Small",
    "model.width=32",
    "model.layers=1",
    "model.heads=1",
    "model.feed_forward_width=64",
    "model.remat=none",
    "model.max_positions=32768",
    "update.microbatch_widths=3",
    "tracker=none",
)


def installed(name: str, framework: Framework) -> tuple[Path, list[str]]:
    """Installs a framework; returns its folder and the command that runs its program."""
    folder = CACHE / re.split(r"[\[=@]", framework.packages[0].rpartition("/")[2])[0]
    program, done = HERE / "frameworks" / framework.program, folder / "packages.txt"
    packages = " ".join(framework.packages)
    present = done.exists() and done.read_text() == packages
    if "==" not in packages:
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(program), str(folder)]
        if program.suffix == ".mjs":  # node looks for packages beside the program
            command = ["node", shutil.copy(program, folder)]
        line = ["npm", "install", "--silent", "--no-fund", "--no-audit"]
    else:
        python = str(folder / "bin" / "python")
        command = [python, str(program)]
        line = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        if not present:
            newer = sys.version_info < framework.python
            maker = "python{}.{}".format(*framework.python) if newer else sys.executable
            subprocess.run([maker, "-m", "venv", str(folder)], check=True)
    if not present:
        subprocess.run([*line, *framework.packages], cwd=folder, check=True)
        done.write_text(packages)
    return folder, command


def step(commands: dict[str, list[str]], room: int) -> tuple[dict[str, list[dict[str, Any]]], str]:
    """Trains one step on programs; returns what was recorded, and the output of the run.

    Args:
      room: the most tokens of an episode after its first context.
    """
    with tempfile.TemporaryDirectory() as place:
        asked = [(name, 30) for name in commands], [(next(iter(commands)), 31)]
        files = [Path(place, name) for name in ("train.jsonl", "held_out.jsonl")]
        for file, part in zip(files, asked, strict=True):
            lines = [
                {
                    "question": question(name, second),
                    "answer": str(script(question(name, second))[2]),
                    "command": commands[name],
                }
                for name, second in part
            ]
            file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        words = (
            f"data.path={files[0]}",
            f"data.held_out_path={files[1]}",
            f"prompts_per_step={len(commands)}",
            f"max_response_tokens={room}",
            f"hydra.run.dir={place}/run",
        )
        line = [sys.executable, "-m", "rl4p.train", *STEP, *words]
        done = subprocess.run(
            line, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ | QUICKLY
        )
        recorded = Path(place, "run", "recorded.json")
        log = Path(place, "run", "train.log")
        output = done.stdout + done.stderr + (log.read_text() if log.exists() else "")
        return json.loads(recorded.read_text()) if recorded.exists() else {}, output


def row(name: str, framework: Framework, episodes: list[dict[str, Any]]) -> list[str]:
    """Returns the cells of a program's line."""
    version = framework.packages[0].rpartition("=")[2].rpartition("@")[2]
    failures = "; ".join(sorted({x["failure"] for x in episodes if x["failure"]}))
    trained = all(x["exact"] for x in episodes) and {x["reward"] for x in episodes} == {0.0, 1.0}

    def each(key: str) -> str:
        return "/".join(sorted({str(x[key]) for x in episodes}))

    invalid = f"{sum(bool(x['failure']) for x in episodes)} of {len(episodes)}"
    exact = "exact" if trained else "no"
    return [name, version, each("turns"), each("segments"), exact, invalid, failures]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.agents")
    parser.add_argument("names", nargs="*", metavar="NAME", help="programs; all if there is none")
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    parser.add_argument("--output", action="store_true", help="print the output of the runs")
    given = parser.parse_args()
    if unknown := set(given.names) - set(FRAMEWORKS):
        parser.error(f"no program {min(unknown)}: choose of {', '.join(FRAMEWORKS)}")
    names = given.names or list(FRAMEWORKS)
    places = {name: installed(name, FRAMEWORKS[name]) for name in names}
    print(HEAD)
    good = True
    for room in sorted({FRAMEWORKS[name].room for name in names}):  # rows of similar lengths
        commands = {x: places[x][1] for x in names if FRAMEWORKS[x].room == room}
        recorded, output = step(commands, room)
        if given.output or not recorded:
            print(output, file=sys.stderr)
        for name, episodes in recorded.items():
            cells = row(name, FRAMEWORKS[name], episodes)
            print(f"| {' | '.join(cells)} |", flush=True)
            good &= cells[3:6] == ["1", "exact", f"0 of {len(episodes)}"]
        good &= recorded.keys() == commands.keys()
    if not given.keep:
        for folder, _ in places.values():
            shutil.rmtree(folder, ignore_errors=True)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
