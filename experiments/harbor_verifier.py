"""Grades a task with the verifier of the package harbor, on a machine of `harbor_rewards`.

It runs in an environment with harbor, and talks to `harbor_rewards` over its standard input and
output: a line of JSON for each command, and for each of its results.
"""

import asyncio
import base64
import io
import json
import sys
import tarfile
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harbor.models.task.config import TaskOS  # pyright: ignore[reportMissingImports]
from harbor.models.task.task import Task  # pyright: ignore[reportMissingImports]
from harbor.models.trial.paths import TrialPaths  # pyright: ignore[reportMissingImports]
from harbor.verifier.verifier import Verifier  # pyright: ignore[reportMissingImports]


class Machine:
    """What the verifier uses of an environment of harbor."""

    os = TaskOS.LINUX
    default_user = None

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def exec(self, command: str, env: Any = None, content: bytes = b"", **_: Any) -> Any:
        request = {"command": command, "env": env or {}, "seconds": self.seconds}
        print(json.dumps(request | {"content": base64.b64encode(content).decode()}), flush=True)
        reply = json.loads(sys.stdin.readline())
        if reply["code"] is None:
            raise TimeoutError
        output = base64.b64decode(reply["output"])
        return SimpleNamespace(return_code=reply["code"], stdout=output, stderr="")

    async def upload_dir(self, source_dir: Any, target_dir: str) -> None:
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            tar.add(source_dir, ".")
        command = f"mkdir -p {target_dir} && tar -xf - -C {target_dir}"
        result = await self.exec(command, content=archive.getvalue())
        if result.return_code:
            raise OSError(result.stdout)

    async def download_dir(self, source_dir: str, target_dir: Any) -> None:
        result = await self.exec(f"tar -cf - -C {source_dir} .")
        with tarfile.open(fileobj=io.BytesIO(result.stdout)) as tar:
            tar.extractall(target_dir, filter="data")

    def is_path_mounted(self, *_: Any) -> bool:
        return False


async def main(folder: str) -> None:
    task = Task(folder)
    with tempfile.TemporaryDirectory() as place:
        paths = TrialPaths(trial_dir=Path(place))
        paths.mkdir()
        machine: Any = Machine(task.config.verifier.timeout_sec)
        try:
            result = await Verifier(task=task, trial_paths=paths, environment=machine).verify()
            end = {"rewards": result.rewards, "instruction": task.instruction}
        except Exception as error:  # noqa: BLE001 - of harbor, whose kinds are compared
            end = {"error": type(error).__name__, "instruction": task.instruction}
    print(json.dumps(end), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
