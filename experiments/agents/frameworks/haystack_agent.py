"""Haystack: an agent with a tool."""

import json
import sys
from typing import Annotated

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool


@tool
def add(a: Annotated[int, "the first number"], b: Annotated[int, "the second number"]) -> int:
    """Adds two numbers."""
    return a + b


row = json.loads(sys.stdin.readline())
agent = Agent(chat_generator=OpenAIChatGenerator(model="gpt-4.1"), tools=[add])
result = agent.run(messages=[ChatMessage.from_user(row["question"])])
print(float(row["answer"] in result["last_message"].text))
