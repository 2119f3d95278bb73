"""Codex: `codex exec`, with a provider of models of its own configuration."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

row = json.loads(sys.stdin.readline())
with tempfile.TemporaryDirectory() as folder:
    provider = {
        "name": "rl4p",
        "base_url": os.environ["OPENAI_BASE_URL"],
        "env_key": "OPENAI_API_KEY",
        "wire_api": "responses",
    }
    instructions = Path(folder, "instructions.md")  # instead of 17 kB of its own
    instructions.write_text("You are an agent with a shell.")
    values = {
        "model": "rl4p",
        "model_provider": "rl4p",
        "model_instructions_file": str(instructions),
        "features.multi_agent": False,
        "features.goals": False,
        "skills.include_instructions": False,
    } | {f"model_providers.rl4p.{name}": value for name, value in provider.items()}
    output = Path(folder, "answer.txt")
    line = [f"{sys.argv[1]}/node_modules/.bin/codex", "exec", "--skip-git-repo-check"]
    line += ["--dangerously-bypass-approvals-and-sandbox", f"--output-last-message={output}"]
    line += [f"--config={name}={json.dumps(value)}" for name, value in values.items()]
    own = {"HOME": folder, "CODEX_HOME": folder}
    subprocess.run(
        [*line, row["question"]],
        env=os.environ | own,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        check=True,
    )
    answer = output.read_text()
print(float(row["answer"] in answer))
