"""The calls of tools in a message, in the forms that chat templates of model families describe.

    Hermes, Qwen         <tool_call>{"name": NAME, "arguments": {...}}</tool_call>
    Qwen3-Coder          <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function>
                         </tool_call>
    Llama 3              {"name": NAME, "parameters": {...}}, the whole message
    Mistral              [TOOL_CALLS][{"name": NAME, "arguments": {...}}, ...], or
                         [TOOL_CALLS]NAME[ARGS]{...} for each call

A message is read in the form that it has; no form is a part of another.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rl4p.data.messages import arguments_of

BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
FUNCTION = re.compile(r"\s*<function=([^>\s]+)>(.*)</function>\s*", re.DOTALL)
PARAMETER = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
MISTRAL = re.compile(r"\s*([\w.-]+)\s*\[ARGS\](.*)", re.DOTALL)


class ParsedCall(NamedTuple):
    """A call of a tool.

    Attributes:
      arguments: the arguments by name.
      texts: whether the values are texts without types, as in the form of Qwen3-Coder.
    """

    name: str
    arguments: Mapping[str, Any]
    texts: bool = False


class MalformedCall(NamedTuple):
    """What looks like a call and is none, with the reason."""

    reason: str


def tool_calls(text: str) -> list[ParsedCall | MalformedCall]:
    """Returns the calls of a message in order; empty if it calls no tool."""
    return list(found_calls(text))


def found_calls(text: str) -> Iterator[ParsedCall | MalformedCall]:
    if "<tool_call>" in text:
        yield from map(call_in, BLOCK.findall(text))
    elif "[TOOL_CALLS]" in text:
        for part in text.split("[TOOL_CALLS]")[1:]:
            if (match := MISTRAL.fullmatch(part)) is not None:
                yield call_of_json(part, name=match[1], arguments=match[2])
            else:
                yield from calls_of_list(part)
    else:
        part = text.replace("<|python_tag|>", "").strip()
        if part.startswith("{") and '"name"' in part:
            yield call_of_json(part)


def call_in(block: str) -> ParsedCall | MalformedCall:
    """Returns the call between `<tool_call>` and `</tool_call>`."""
    return call_of_function(block) if "<function=" in block else call_of_json(block)


def call_of_json(
    text: str, *, name: str | None = None, arguments: str | None = None
) -> ParsedCall | MalformedCall:
    """Returns the call that JSON text describes; `name` if the text has the arguments alone."""
    try:
        value = json.loads(text if arguments is None else arguments)
    except (ValueError, RecursionError) as error:
        return MalformedCall(f"the call is no JSON ({error})")
    return call_of(value if name is None else {"name": name, "arguments": value})


def calls_of_list(text: str) -> Iterator[ParsedCall | MalformedCall]:
    try:
        values, _ = json.JSONDecoder().raw_decode(text.strip())
    except (ValueError, RecursionError) as error:
        yield MalformedCall(f"the call is no JSON ({error})")
        return
    for value in values if isinstance(values, list) else [values]:
        yield call_of(value)


def call_of(value: Any) -> ParsedCall | MalformedCall:
    """Returns the call in a value of JSON. Arguments may be an object, or one as JSON text."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return MalformedCall('a call is an object with "name" and "arguments"')
    try:
        return ParsedCall(
            value["name"], arguments_of(value.get("arguments", value.get("parameters")))
        )
    except ValueError as error:
        return MalformedCall(f"the arguments are wrong ({error})")


def call_of_function(block: str) -> ParsedCall | MalformedCall:
    """Returns the call of a block with `<function=NAME>`."""
    match = FUNCTION.fullmatch(block)
    if match is None:
        return MalformedCall("<function=NAME> is not closed")
    return ParsedCall(match[1], dict(PARAMETER.findall(match[2])), texts=True)
