"""LangChain's agent, which is a graph of langgraph."""

import json
import sys

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


row = json.loads(sys.stdin.readline())
agent = create_agent(ChatOpenAI(model="gpt-4.1"), tools=[add])
state = agent.invoke({"messages": [{"role": "user", "content": row["question"]}]})
print(float(row["answer"] in state["messages"][-1].content))
