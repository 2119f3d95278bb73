"""LlamaIndex: a function agent with a tool, over an endpoint that is like OpenAI's."""

import asyncio
import json
import os
import sys

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


async def main() -> None:
    row = json.loads(sys.stdin.readline())
    llm = OpenAILike(
        model="gpt-4.1",
        api_base=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ["OPENAI_API_KEY"],
        is_chat_model=True,
        is_function_calling_model=True,
    )
    agent = FunctionAgent(tools=[add], llm=llm, system_prompt="Use the tool for sums.")
    response = await agent.run(row["question"])
    print(float(row["answer"] in str(response)))


asyncio.run(main())
