"""Google's Agent Development Kit: an agent with a tool, over litellm."""

import asyncio
import json
import sys

from google.adk.agents import Agent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


async def main() -> None:
    row = json.loads(sys.stdin.readline())
    agent = Agent(
        name="calculator",
        model=LiteLlm(model="openai/gpt-4.1"),
        instruction="Use the tool for sums.",
        tools=[add],
    )
    runner = InMemoryRunner(agent=agent, app_name="sums")
    session = await runner.session_service.create_session(app_name="sums", user_id="user")
    message = types.Content(role="user", parts=[types.Part(text=row["question"])])
    said = ""
    async for event in runner.run_async(user_id="user", session_id=session.id, new_message=message):
        if event.is_final_response():
            said = "".join(part.text or "" for part in event.content.parts)
    print(float(row["answer"] in said))


asyncio.run(main())
