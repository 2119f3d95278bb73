"""The OpenAI Agents SDK: an agent with a tool."""

import json
import sys

from agents import Agent, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)


@function_tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


row = json.loads(sys.stdin.readline())
agent = Agent(name="Calculator", instructions="Use the tool for sums.", tools=[add])
result = Runner.run_sync(agent, row["question"])
print(float(row["answer"] in result.final_output))
