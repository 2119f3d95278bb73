"""The messages and tools of a chat request, and the prompt that the chat template makes of them."""

import asyncio
import json
from typing import Any

from rl4p.errors import InputError
from rl4p.model.tokenizer import TEMPLATE_ERRORS, check_template
from rl4p.serving.fields import Fields
from rl4p.serving.http_errors import HttpError
from rl4p.serving.server_state import ServerState

ROLES = ("system", "developer", "user", "assistant", "tool")
MOST_DIRECT = 4096  # characters of a conversation that is encoded without a thread


async def read_prompt(fields: Fields, server: ServerState) -> tuple[list[int], bool]:
    """Reads messages, tools and the template's arguments.

    Returns:
      The token ids of the prompt, and whether the answer may call tools.
    """
    messages = read_messages(fields.take("messages"))
    tools = read_tools(fields, server)
    options: dict[str, Any] = dict(server.policy.template)
    given = fields.take("chat_template_kwargs", {})
    options |= Fields(given, "chat_template_kwargs.").left
    try:
        check_template(server.policy.tokenizer, given, "chat_template_kwargs")
    except InputError as error:
        raise HttpError(str(error), param="chat_template_kwargs") from None
    options["add_generation_prompt"] = fields.flag("add_generation_prompt", True)
    if fields.flag("continue_final_message", False):
        if options["add_generation_prompt"]:
            raise HttpError(
                "continue_final_message needs add_generation_prompt=false.",
                param="continue_final_message",
            )
        options["continue_final_message"] = True

    def encode() -> Any:
        return server.policy.tokenizer.apply_chat_template(
            messages, tools=tools, return_dict=False, **options
        )

    try:
        size = sum(len(str(message.get("content"))) for message in messages)
        tokens = encode() if size < MOST_DIRECT else await asyncio.to_thread(encode)
    except TEMPLATE_ERRORS as error:
        raise HttpError(
            f"The model's chat template does not take these messages: {error}.", param="messages"
        ) from None
    return tokens, tools is not None


def read_messages(value: Any) -> list[dict[str, Any]]:
    """Returns messages as chat templates take them: contents are texts, arguments are objects."""
    if type(value) is not list or not value:
        raise HttpError("messages must be a list of at least one message.", param="messages")
    return [read_message(each, f"messages[{at}]") for at, each in enumerate(value)]


def read_message(value: Any, where: str) -> dict[str, Any]:
    fields = Fields(value, f"{where}.")
    role = fields.text("role")
    if role not in ROLES:
        raise fields.wrong("role", "one of " + ", ".join(ROLES))
    found: dict[str, Any] = {
        "role": "system" if role == "developer" else role,
        "content": read_content(fields, where),
    }
    calls = fields.take("tool_calls")
    if calls is not None:
        if type(calls) is not list:
            raise fields.wrong("tool_calls", "a list")
        found["tool_calls"] = [
            read_call(each, f"{where}.tool_calls[{at}]") for at, each in enumerate(calls)
        ]
    for name in ("name", "tool_call_id", "reasoning_content"):
        text = fields.text(name)
        if text is not None:
            found[name] = text
    fields.ignore("refusal", "annotations", "audio", "function_call", "reasoning", "stop_reason")
    fields.end()
    return found


def read_content(fields: Fields, where: str) -> str:
    """Returns the text of a message, which may come in parts."""
    value = fields.take("content", "")
    if type(value) is str:
        return fields.valid("content", value)
    if type(value) is not list:
        raise fields.wrong("content", "a string or a list of parts of text")
    texts = []
    for at, each in enumerate(value):
        part = Fields(each, f"{where}.content[{at}].")
        if part.text("type") != "text":
            raise part.wrong("type", "text, since the model reads nothing else")
        texts.append(part.text("text", ""))
    return "".join(texts)


def read_call(value: Any, where: str) -> dict[str, Any]:
    """Returns a call that the assistant made, with its arguments as an object."""
    fields = Fields(value, f"{where}.")
    function = Fields(fields.take("function"), f"{where}.function.")
    name, arguments = function.text("name", ""), function.take("arguments", {})
    if type(arguments) is str:
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            raise function.wrong("arguments", "a JSON object") from None
    if type(arguments) is not dict or not name:
        raise HttpError(f"{where}.function needs a name and arguments.", param=where)
    called = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return called if (mark := fields.text("id")) is None else {"id": mark} | called


def read_tools(fields: Fields, server: ServerState) -> list[Any] | None:
    """Returns the tools for the template; None for no tools."""
    tools, choice = fields.take("tools", []), fields.take("tool_choice", "auto")
    fields.unsupported("parallel_tool_calls", True)
    if type(tools) is not list:
        raise fields.wrong("tools", "a list of functions")
    for at, each in enumerate(tools):
        tool = Fields(each, f"tools[{at}].")
        if tool.text("type") != "function":
            raise tool.wrong("type", "function")
        if not Fields(tool.take("function"), f"tools[{at}].function.").text("name"):
            raise HttpError(f"tools[{at}].function.name is missing.", param="tools")
    if choice not in ("auto", "none"):
        raise HttpError(
            "tool_choice must be auto or none: a call cannot be enforced.", param="tool_choice"
        )
    if not tools or choice == "none":
        return None
    if "tools" not in server.policy.tokenizer.get_chat_template():
        raise HttpError("The model's chat template knows no tools: leave tools out.", param="tools")
    return tools
