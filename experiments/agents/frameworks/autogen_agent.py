"""AutoGen: an assistant with a tool."""

import asyncio
import json
import sys

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient


async def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


async def main() -> None:
    row = json.loads(sys.stdin.readline())
    client = OpenAIChatCompletionClient(model="gpt-4.1")
    agent = AssistantAgent("calculator", client, tools=[add], max_tool_iterations=5)
    result = await agent.run(task=row["question"])
    print(float(row["answer"] in result.messages[-1].content))


asyncio.run(main())
