"""smolagents: an agent that writes Python that calls the tool."""

import json
import os
import sys

from smolagents import CodeAgent, OpenAIModel, tool


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


row = json.loads(sys.stdin.readline())
model = OpenAIModel(
    model_id="gpt-4.1",
    api_base=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
)
agent = CodeAgent(tools=[add], model=model, verbosity_level=0)
answer = agent.run(row["question"])
print(float(row["answer"] == str(answer)))
