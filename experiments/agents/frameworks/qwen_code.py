"""Qwen Code: `qwen` with its shell alone."""

import json
import os
import subprocess
import sys
import tempfile

row = json.loads(sys.stdin.readline())
with tempfile.TemporaryDirectory() as folder:
    line = [f"{sys.argv[1]}/node_modules/.bin/qwen", "--prompt", row["question"]]
    line += ["--auth-type=openai", "--model=rl4p", "--approval-mode=yolo"]
    line += [
        "--core-tools=run_shell_command",
        "--bare",
        "--system-prompt=You are an agent with a shell.",
    ]
    done = subprocess.run(
        line,
        env=os.environ | {"HOME": folder},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=True,
    )
print(float(row["answer"] in done.stdout.decode()))
