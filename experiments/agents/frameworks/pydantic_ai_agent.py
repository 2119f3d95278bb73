"""Pydantic AI: an agent with a tool, whose answer is validated as an integer by an output tool."""

import json
import sys

from pydantic import BaseModel
from pydantic_ai import Agent


class Sum(BaseModel):
    """The answer."""

    value: int


row = json.loads(sys.stdin.readline())
agent = Agent("openai-chat:gpt-4.1", output_type=Sum, instructions="Use the tool for sums.")


@agent.tool_plain
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


result = agent.run_sync(row["question"])
print(float(row["answer"] == str(result.output.value)))
