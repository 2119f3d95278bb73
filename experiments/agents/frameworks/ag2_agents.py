"""AG2: an agent with a tool."""

import asyncio
import json
import sys

from ag2 import Agent, tool
from ag2.config import OpenAIConfig


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


async def main() -> None:
    row = json.loads(sys.stdin.readline())
    config = OpenAIConfig(model="gpt-4.1")
    agent = Agent("calculator", prompt="Use the tool for sums.", config=config, tools=[add])
    reply = await agent.ask(row["question"])
    print(float(row["answer"] in reply.body))


asyncio.run(main())
