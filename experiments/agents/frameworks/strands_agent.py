"""Strands: an agent with a tool, over OpenAI's client."""

import json
import sys

from strands import Agent, tool
from strands.models.openai import OpenAIModel


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


row = json.loads(sys.stdin.readline())
agent = Agent(model=OpenAIModel(model_id="gpt-4.1"), tools=[add], callback_handler=None)
result = agent(row["question"])
print(float(row["answer"] in str(result)))
