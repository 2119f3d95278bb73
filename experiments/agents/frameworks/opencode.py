"""opencode: `opencode run`, with a provider of its own configuration and its shell alone."""

import json
import os
import subprocess
import sys
import tempfile

row = json.loads(sys.stdin.readline())
provider = {
    "npm": "@ai-sdk/openai-compatible",
    "options": {"baseURL": os.environ["OPENAI_BASE_URL"], "apiKey": os.environ["OPENAI_API_KEY"]},
    "models": {"rl4p": {}},
}
configuration = {
    "provider": {"rl4p": provider},
    "model": "rl4p/rl4p",
    "autoupdate": False,
    "share": "disabled",
    "tools": {"*": False, "bash": True},
    "agent": {"build": {"prompt": "You are an agent with a shell."}},
}
own = {
    "OPENCODE_CONFIG_CONTENT": json.dumps(configuration),
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
}
with tempfile.TemporaryDirectory() as folder:
    done = subprocess.run(
        [f"{sys.argv[1]}/node_modules/.bin/opencode", "run", "--title=Sum", row["question"]],
        env=os.environ | own | {"HOME": folder},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=True,
    )
print(float(row["answer"] in done.stdout.decode()))
