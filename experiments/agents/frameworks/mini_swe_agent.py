"""mini-swe-agent: its program, with its own prompts and its shell of this machine."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

row = json.loads(sys.stdin.readline())
with tempfile.TemporaryDirectory() as folder:
    own = {
        "HOME": folder,
        "MSWEA_GLOBAL_CONFIG_DIR": folder,
        "MSWEA_CONFIGURED": "true",  # asks nothing about keys and models
        "MSWEA_COST_TRACKING": "ignore_errors",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # fetches no list of prices
    }
    program = Path(sys.executable).with_name("mini")
    output = Path(folder, "run.traj.json")
    line = [program, "--model=openai/gpt-4.1", f"--task={row['question']}", "--yolo"]
    line += ["--exit-immediately", "--agent-class=default", f"--output={output}"]
    subprocess.run(line, env=os.environ | own, cwd=folder, stdin=subprocess.DEVNULL, check=True)
    answer = json.loads(output.read_text())["info"]["submission"]
print(float(row["answer"] == answer.strip()))
