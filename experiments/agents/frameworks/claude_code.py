"""Claude Code: `claude --print`, with the tool Bash and a short system prompt."""

import json
import os
import subprocess
import sys
import tempfile

row = json.loads(sys.stdin.readline())
with tempfile.TemporaryDirectory() as folder:
    own = {
        "HOME": folder,
        "CLAUDE_CONFIG_DIR": folder,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",  # no telemetry, no updates
    }
    line = [f"{sys.argv[1]}/node_modules/.bin/claude", "--print", row["question"], "--tools=Bash"]
    line += ["--allowed-tools=Bash", "--system-prompt=You are an agent with a shell."]
    line += ["--output-format=json", "--no-session-persistence"]
    done = subprocess.run(
        line,
        env=os.environ | own,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=True,
    )
answer = json.loads(done.stdout)["result"]
print(float(row["answer"] in answer))
