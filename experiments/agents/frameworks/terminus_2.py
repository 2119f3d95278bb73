"""Terminus-2 of harbor, in a terminal (tmux) of this machine instead of a container."""

import asyncio
import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harbor.agents.terminus_2 import Terminus2
from harbor.environments.base import ExecResult
from harbor.models.agent.context import AgentContext


class Here:
    """What the agent uses of an environment: commands, which run in a folder."""

    session_id = "here"
    default_user = None
    logger = logging.getLogger("here")

    def __init__(self, folder: str) -> None:
        self.folder = folder

    async def exec(self, command: str, **_: Any) -> ExecResult:
        done = await asyncio.to_thread(
            subprocess.run,
            ["bash", "-c", command],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return ExecResult(stdout=done.stdout, stderr=done.stderr, return_code=done.returncode)


async def play(task: str, folder: str) -> None:
    environment: Any = Here(folder)
    agent = Terminus2(
        logs_dir=Path(folder),
        model_name="openai/gpt-4.1",
        api_base=os.environ["OPENAI_BASE_URL"],
        record_terminal_session=False,
    )
    await agent.setup(environment)
    await agent.run(task, environment, AgentContext())


row = json.loads(sys.stdin.readline())
with tempfile.TemporaryDirectory() as folder:
    os.environ["TMUX_TMPDIR"] = folder  # so that its server is of this episode alone
    try:
        asyncio.run(play(row["question"], folder))
    finally:
        subprocess.run(["tmux", "kill-server"], check=False)
    answer = Path(folder, "sum").read_text()
print(float(row["answer"] == answer.strip()))
