"""dspy: the module ReAct with a tool."""

import json
import sys

import dspy


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


row = json.loads(sys.stdin.readline())
dspy.configure(lm=dspy.LM("openai/gpt-4.1", cache=False))
react = dspy.ReAct("question -> answer: int", tools=[add])
result = react(question=row["question"])
print(float(row["answer"] == str(result.answer)))
