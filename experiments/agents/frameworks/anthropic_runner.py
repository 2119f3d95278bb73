"""The tool runner of Anthropic's client."""

import json
import sys

from anthropic import Anthropic, beta_tool


@beta_tool
def add(a: int, b: int) -> str:
    """Adds two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return str(a + b)


row = json.loads(sys.stdin.readline())
runner = Anthropic().beta.messages.tool_runner(
    model="claude-sonnet-4-5",
    max_tokens=200,
    tools=[add],
    messages=[{"role": "user", "content": row["question"]}],
)
message = runner.until_done()
text = "".join(block.text for block in message.content if block.type == "text")
print(float(row["answer"] in text))
