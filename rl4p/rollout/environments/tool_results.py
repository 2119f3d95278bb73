"""The results of the calls of tools in a message of the policy."""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from rl4p.data.messages import MalformedCall, ParsedCall, tool_calls
from rl4p.protocols.environment import Message, StepResult


async def results_of_calls(
    text: str,
    tools: Mapping[str, Any],
    answer: Callable[[ParsedCall], Awaitable[str]],
    most: int,
) -> StepResult | None:
    """Returns a message of the role `tool` for each call in a text; None if it has no call.

    A call that is malformed, or of another tool, is answered with a text that begins with `Error:`.
    The metrics are the numbers of calls and of malformed calls.

    Args:
      tools: the tools by name.
      answer: returns the result of a call of one of them.
      most: the most characters of a result; a longer one is cut, and ends with a note.
    """
    calls = tool_calls(text)
    if not calls:
        return None

    async def result(call: ParsedCall | MalformedCall) -> Message:
        if isinstance(call, MalformedCall):
            return {"role": "tool", "content": f"Error: {call.reason}."}
        if call.name not in tools:
            content = f"Error: there is no tool {call.name!r}, only {', '.join(tools)}."
        else:
            content = await answer(call)
        if len(content) > most:
            content = f"{content[:most]} [cut after {most} of {len(content)} characters]"
        return {"role": "tool", "name": call.name, "content": content}

    malformed = sum(isinstance(call, MalformedCall) for call in calls)
    return StepResult(
        messages=[await result(call) for call in calls],
        metrics={"tool_calls": len(calls), "malformed_calls": malformed},
    )


def typed_arguments(call: ParsedCall, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call, with the types of a JSON schema.

    The form of Qwen3-Coder has texts alone; those of other types are read as JSON.
    """
    arguments = dict(call.arguments)
    if call.texts:
        types = {name: each.get("type") for name, each in schema.get("properties", {}).items()}
        for name, text in arguments.items():
            if types.get(name, "string") != "string":
                try:
                    arguments[name] = json.loads(text)
                except ValueError:  # the server says what is wrong about it
                    continue
    return arguments
