"""What a policy asks of an environment in words or by tool calls, and what it is told."""

import json
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rl4p.base.types import Prompt
from rl4p.data.call_reader import CallReader, functions_of
from rl4p.data.extraction import after_thoughts
from rl4p.data.tool_calls import MalformedCall, ParsedCall
from rl4p.protocols.environment import Message, StepResult


@dataclass(frozen=True, kw_only=True)
class TextActions:
    """Options that read the action of a step from a message of the policy.

    The action is the text of the message behind its thoughts; if `action_begin` is given, what
    follows its last occurrence there, up to `action_end`. A message without an action is answered
    with `missing_action` and costs a turn.

    Attributes:
      action_begin, action_end: what encloses the action in a message; null for the whole message.
      missing_action: the answer to a message without an action.
      discrete: whether the action is converted to an int.
    """

    action_begin: str | None = None
    action_end: str | None = None
    missing_action: str = "Your message has no action."
    discrete: bool = False

    def action(self, message: str, prompt: Prompt) -> Any:
        """Returns the action in a message to a prompt, or what is wrong about it."""
        text = after_thoughts(message, prompt.generation_prompt)
        if text is None:  # the message was cut while thinking
            return MalformedCall(self.missing_action)
        if self.action_begin is not None:
            _, begin, text = text.rpartition(self.action_begin)
            if not begin:
                return MalformedCall(self.missing_action)
        if self.action_end is not None:
            text, end, _ = text.partition(self.action_end)
            if not end:
                return MalformedCall(self.missing_action)
        if not self.discrete:
            return text.strip()
        try:
            return int(text)
        except ValueError:
            return MalformedCall(self.missing_action)

    def without_action(self, state: Hashable) -> StepResult:
        """Returns the answer to a message without an action, in a state."""
        return StepResult(
            messages=[{"role": "user", "content": self.missing_action}],
            metrics={"missing_actions": 1.0},
            state=state,
        )


NAMED = {"image": "an image", "audio": "a sound"}  # contents that the policy cannot read


async def results_of_calls(
    text: str, reader: CallReader, answer: Callable[[ParsedCall], Awaitable[str]], most: int
) -> StepResult | None:
    """Returns a message of the role `tool` for each call in a text; None if it has no call.

    A call that is malformed, or of another tool, is answered with a text that begins with `Error:`.
    The metrics are the numbers of calls and of malformed calls.

    Args:
      reader: knows the tools.
      answer: returns the result of a call of one of them.
      most: the most characters of a result; a longer one is cut, and ends with a note.
    """
    calls, tools = reader.calls(text), reader.functions or {}
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


class ServerTools:
    """The tools of a server, as the first episode lists them; they are no option."""

    schemas: tuple[Message, ...] | None = None

    def reader(self, prompt: Prompt) -> CallReader:
        """Returns the reader of the calls of these tools, in an episode of a prompt."""
        return reader_of(self.schemas or (), prompt)


def reader_of(tools: Sequence[Message], prompt: Prompt) -> CallReader:
    """Returns the reader of the calls of an environment's tools, in an episode of a prompt."""
    return CallReader(functions=functions_of(tools), generation_prompt=prompt.generation_prompt)


def schema_of(tool: Mapping[str, Any]) -> Message:
    """Returns the schema of a tool that a server lists, in the form of chat templates."""
    function = {
        "name": tool["name"],
        "description": tool.get("description") or "",
        "parameters": tool.get("input_schema") or {},
    }
    return {"type": "function", "function": function}


def text_of_result(result: Any) -> str:
    """Returns the text of a tool's result; other values than those of the protocol are JSON.

    The texts of its contents are lines. What has no text is named, as in `[an image]`. The JSON of
    `structured_content` is read if no content is a text.
    """
    if not (isinstance(result, Mapping) and isinstance(result.get("content"), list)):
        return result if isinstance(result, str) else json.dumps(result, default=str)
    texts = [text_of_content(part) for part in result["content"]]
    structured = either(result, "structured_content", "structuredContent")
    parts = [part.get("resource") or part for part in result["content"]]
    if structured is not None and not any(isinstance(x.get("text"), str) for x in parts):
        texts.append(json.dumps(structured, default=str))
    prefix = "Error: " if either(result, "is_error", "isError") else ""
    return prefix + "\n".join(texts)


def text_of_content(part: Mapping[str, Any]) -> str:
    """Returns the text of a content of a tool's result, or what it is."""
    kind = part.get("type")
    if kind == "text":
        return part["text"]
    resource = part.get("resource") if kind == "resource" else part
    source = resource if isinstance(resource, Mapping) else {}
    if isinstance(source.get("text"), str):
        return source["text"]
    if kind == "resource_link":
        words = (source.get("title") or source.get("name"), source.get("description"))
        about = ", ".join(str(each) for each in words if each)
        return f"{about}: {source.get('uri')}" if about else f"{source.get('uri')}"
    if kind in NAMED:
        return f"[{NAMED[kind]}]"
    form, place = either(source, "mime_type", "mimeType"), source.get("uri")
    about = " ".join(str(each) for each in (form, place) if each)
    return f"[data: {about}]" if about else f"[{kind or 'something'} without a text]"


def either(values: Mapping[str, Any], *names: str) -> Any:
    """Returns the value of the first name that has one; names are written in two ways."""
    return next((values[name] for name in names if values.get(name) is not None), None)
