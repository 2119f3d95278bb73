"""Compares the rewards of `environment=harbor` with those of the package's own verifier.

    python -m experiments.harbor_rewards PYTHON_WITH_HARBOR

The tasks have the tests that the package harbor ships (the templates of `harbor check` and of
compiled tasks), and tests of our own with all forms of the reward file. The same commands are run
on two machines; one is then graded by rl4p and the other by harbor. A line has a task, the commands
and the two rewards; the last line counts those that differ.
"""

import asyncio
import base64
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rl4p.base.types import Prompt
from rl4p.rollout.environments.harbor import Harbor
from rl4p.rollout.runtimes.bubblewrap import Bubblewrap

WRITE = "cat >/logs/verifier/reward.{} <<'END'\n{}\nEND\n"
FORMS = {
    **{f"text {text!r}": WRITE.format("txt", text) for text in ("1", " 0.5 ", "-2e-1", "nan", "x")},
    "empty text": ": >/logs/verifier/reward.txt",
    "no file": "true",
    "an error after the reward": WRITE.format("txt", "1") + "exit 3",
    "both files": WRITE.format("txt", "1") + WRITE.format("json", '{"reward": 0.25}'),
    **{
        f"JSON {text}": WRITE.format("json", text)
        for text in (
            *('{"reward": 1}', '{"speed": 0.5}', '{"reward": 0.5, "speed": 3}', '{"a": true}'),
            *('{"reward": "1"}', '{"reward": NaN}', '{"reward": 1e999}', "[1]", "1", "{", ""),
        )
    },
    "the time": "sleep 60",
    "a variable": 'echo "$SCORE" >/logs/verifier/reward.txt',
    "where it runs": 'pwd | grep -c "^/app$" >/logs/verifier/reward.txt',
}
TOML = '[verifier]\ntimeout_sec = 2\nenv = { SCORE = "0.75" }\n[agent]\ntimeout_sec = 600\n'
GOOD = '{"a": {"outcome": "pass", "explanation": "It is."}}'
CHECKS = (f"echo '{GOOD}' >check-result.json", "echo '{}' >check-result.json", "true")
COMPILED = (
    'echo a >out.txt; echo \'{"reward": 0.5, "speed": 2}\' >score.json',
    *("echo a >out.txt", "echo '{\"reward\": true}' >score.json; echo a >out.txt", "true"),
)


def write(folder: Path, test: str) -> Path:
    """Writes a task folder; returns its folder of tests."""
    for name in ("environment", "tests"):
        (folder / name).mkdir(parents=True)
    (folder / "task.toml").write_text(TOML)
    (folder / "instruction.md").write_text("# canary\n\nDo it.\n")
    (folder / "environment" / "Dockerfile").write_text("FROM python:3.13-slim\nWORKDIR /app\n")
    (folder / "tests" / "test.sh").write_text(f"#!/bin/bash\n{test}\n")
    return folder / "tests"


def tasks(place: Path, package: Path) -> dict[str, tuple[str, ...]]:
    """Writes the tasks; returns the commands of each by its name."""
    commands = {}
    for name, script in FORMS.items():
        write(place / name.replace("/", " "), script)
        commands[name.replace("/", " ")] = ("true",)
    tests = write(place / "harbor check", "")
    shutil.copytree(package / "analyze/check-task-template/tests", tests, dirs_exist_ok=True)
    (tests / "criteria.json").write_text('["a"]')
    tests = write(place / "harbor compile", "")
    shutil.copytree(package / "compile/compiled-task-template/tests", tests, dirs_exist_ok=True)
    shutil.copy(tests / "auto-verify-artifacts.sh", tests / "test.sh")
    (tests / "required-artifacts.txt").write_text("/app/out.txt\n")
    (tests / "reward-artifact.txt").write_text("/app/score.json\n")
    return commands | {"harbor check": CHECKS, "harbor compile": COMPILED}


def by_harbor(python: str, folder: Path, machine: Any) -> Any:
    """Returns the reward that harbor's verifier gives; None if it raises an error."""
    words = [python, str(Path(__file__).parent / "harbor_verifier.py"), str(folder)]
    with subprocess.Popen(words, stdin=-1, stdout=-1, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        while "command" in (request := json.loads(child.stdout.readline())):
            content = base64.b64decode(request["content"])
            options = {"content": content, "variables": request["env"]}
            result = machine.run(request["command"], seconds=request["seconds"], **options)
            reply = {"code": result.code, "output": base64.b64encode(result.output).decode()}
            child.stdin.write(json.dumps(reply) + "\n")
            child.stdin.flush()
    rewards = request.get("rewards")
    return rewards and rewards.get("reward", *rewards.values() if len(rewards) == 1 else ())


async def graded(harbor: Harbor, name: str, command: str, python: str) -> tuple[Any, Any]:
    """Returns the rewards of rl4p and of harbor after a command."""
    prompt = Prompt(id=f"harbor/{name}", question="", answer="", task="t", tokens=(0,))
    rewards = []
    for ours in (True, False):
        episode = harbor.open(prompt, 0, "e")
        try:
            await episode.reset()
            await episode.run(command, 60.0)
            if ours:
                reward = await episode.cut_reward()
                rewards.append(None if "ungraded" in episode.metrics else reward)
            else:
                rewards.append(by_harbor(python, harbor.by_name[name].folder, episode.machine))
        finally:
            await episode.close()
    return rewards[0], rewards[1]


def main() -> int:
    python = sys.argv[1]
    where = [python, "-c", "import harbor; print(harbor.__path__[0])"]
    package = Path(subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip())
    compared = differ = 0
    with tempfile.TemporaryDirectory() as folder:
        commands = tasks(Path(folder), package)
        harbor = Harbor(path=folder, runtime=Bubblewrap())
        for name, each in commands.items():
            for command in each:
                ours, theirs = asyncio.run(graded(harbor, name, command, python))
                compared += 1
                differ += ours != theirs
                print(f"{name:40} {command[:40]:42} {ours!s:8} {theirs!s:8}", flush=True)
    print(f"{compared} compared, {differ} differ")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
