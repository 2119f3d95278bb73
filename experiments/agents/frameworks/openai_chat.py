"""OpenAI's client, with a loop of one's own over its chats."""

import json
import sys

from openai import OpenAI

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
        },
    }
]

row = json.loads(sys.stdin.readline())
client = OpenAI()
messages = [{"role": "user", "content": row["question"]}]
while True:
    response = client.chat.completions.create(model="gpt-4.1", messages=messages, tools=TOOLS)
    message = response.choices[0].message
    messages.append(message)
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        numbers = json.loads(call.function.arguments)
        result = str(numbers["a"] + numbers["b"])
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
print(float(row["answer"] in message.content))
