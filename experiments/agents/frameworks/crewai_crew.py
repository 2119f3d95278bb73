"""CrewAI: a crew of one agent with a tool."""

import json
import os
import sys

os.environ["CREWAI_DISABLE_TELEMETRY"] = "true"
from crewai import Agent, Crew, Task
from crewai.tools import tool


@tool("add")
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


row = json.loads(sys.stdin.readline())
agent = Agent(
    role="Calculator",
    goal="Answer the question.",
    backstory="You use the tool for sums.",
    llm="openai/gpt-4.1",
    tools=[add],
)
task = Task(description=row["question"], expected_output="The number.", agent=agent)
result = Crew(agents=[agent], tasks=[task]).kickoff()
print(float(row["answer"] in result.raw))
