"""Compares what a policy reads from servers with what the clients of their packages show.

    pip install 'rl4p[mcp,openenv]' openenv-core
    python -m experiments.environment_servers

OpenEnv: the server that `openenv init` writes. MCP: the tools of a server of the package. A line
has the number of texts that were compared, and of those that differ.
"""

import asyncio
import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import sleep
from typing import Any

from experiments.environment_texts import played
from rl4p.rollout.environments.mcp import MCP
from rl4p.rollout.environments.openenv import OpenEnv

MOVES = ("hello", "", "two  spaces", "a\nb", '{"a": [1, 2.50]}', "\u00fc\u4f60", "<b>")
CLIENT = """
import asyncio, json, sys
from my_env import MyAction, MyEnv

async def main():
    async with MyEnv(base_url=sys.argv[1]) as server:
        results = [await server.reset()]
        for move in json.loads(sys.argv[2]):
            results.append(await server.step(MyAction(message=move)))
        print(json.dumps([result.observation.echoed_message for result in results]))

asyncio.run(main())
"""
TOOLS = """
from datetime import date
from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel

class Row(BaseModel):
    name: str
    day: date

server = MCPServer("tools")
for name, value in {
    "text": "two\\nlines ", "number": 2.50, "nothing": None, "table": {"b": [1, None], "a": "x"},
    "texts": ["one", "two"], "empty": "", "row": Row(name="x", day=date(2026, 1, 2)),
}.items():
    server.add_tool(lambda value=value: value, name=name, description=name)
server.run()
"""


def read(options: Any, moves: Sequence[str]) -> list[str]:
    """Returns the texts that a policy reads which makes some moves."""
    return [text for text, _ in asyncio.run(played(options, moves))[0]]


def answers(port: int) -> bool:
    """Returns whether a server listens at a port of this machine."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def of_openenv() -> tuple[list[str], list[str]]:
    """Returns the texts of the template of OpenEnv: of a policy, and of the package's client."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(sys.executable).parent / "openenv")
        subprocess.run([program, "init", "my_env"], cwd=folder, check=True, capture_output=True)
        line = [sys.executable, "-m", "my_env.server.app", "--port", str(port)]
        server = subprocess.Popen(line, cwd=folder, stderr=subprocess.DEVNULL)
        try:
            while server.poll() is None and not answers(port):
                sleep(0.2)
            url = f"http://127.0.0.1:{port}"
            options = OpenEnv(url=url, action_field="message", observation_field="echoed_message")
            ours = read(options, MOVES)
            client = [sys.executable, "-c", CLIENT, url, json.dumps(MOVES)]
            shown = subprocess.run(client, cwd=folder, check=True, capture_output=True, text=True)
            return ours, json.loads(shown.stdout.splitlines()[-1])
        finally:
            server.terminate()
            server.wait()


def of_mcp() -> tuple[list[str], list[str]]:
    """Returns the results of tools: as a policy reads them, and the texts of the client."""
    from mcp.client.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    command = (sys.executable, "-c", TOOLS)
    parameters = StdioServerParameters(command=command[0], args=[*command[1:]])

    async def shown() -> list[tuple[str, str]]:
        async with Client(stdio_client(parameters)) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            results = [(name, await client.call_tool(name, {})) for name in names]
            lines = [(name, [x.text for x in result.content]) for name, result in results]  # type: ignore[union-attr]
            return [(name, "\n".join(line)) for name, line in lines]

    theirs = asyncio.run(shown())
    line = '<tool_call>{{"name": "{}", "arguments": {{}}}}</tool_call>'
    calls = [line.format(name) for name, _ in theirs]
    return read(MCP(command=command), calls), [text for _, text in theirs]


def main() -> int:
    """Prints the table; returns 1 if a text differs."""
    wrong = 0
    for name, compared in (("OpenEnv", of_openenv), ("MCP", of_mcp)):
        ours, theirs = compared()
        pairs = [*zip(ours, theirs, strict=True)]
        differ = [pair for pair in pairs if pair[0] != pair[1]]
        print(f"{name:8} {len(pairs)} texts, {len(differ)} differ", *differ, sep="\n  ")
        wrong += len(differ)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
