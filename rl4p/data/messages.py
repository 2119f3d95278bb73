"""Conversations as chat templates take them, read from data sets and from chat requests."""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from rl4p.base.errors import InputError
from rl4p.data.fields import MEDIA, MISSING, is_filled
from rl4p.data.message_weights import KEYS

log = logging.getLogger(__name__)

ROLES = ("system", "user", "assistant", "tool")
# The names of the fields and of the roles in ShareGPT's format.
OTHER_NAMES = {"from": "role", "value": "content", "human": "user", "gpt": "assistant"}
# Other names of roles: OpenAI's, and those of calls and results in LLaMA-Factory's ShareGPT format.
OTHER_ROLES = {"developer": "system", "function_call": "assistant", "observation": "tool"}
OTHER_ROLES |= {"function": "tool", "ipython": "tool", "model": "assistant"}
TAG = re.compile(r"</?(?:think|answer)>", re.IGNORECASE)  # what it encloses stays

Message = dict[str, Any]


def conversation(
    value: Any, place: str, *, strip_tags: bool, table: bool = False
) -> tuple[Message, ...]:
    """Returns the messages of a row, as chat templates take them.

    Args:
      value: a list of mappings with `role` and `content`, or with `from` and `value`; or such a
        list as JSON text. A content is a text, or a list of ``{"type": "text", "text": ...}``.
      place: the row and its field, for error messages.
      strip_tags: whether user messages lose their think and answer tags.
      table: whether the value comes from a table with columns (`without_nulls`).
    """
    value = given(value, table, f"{place}: the text is not a list of messages in JSON.")
    if not isinstance(value, list | tuple) or not value:
        raise InputError(f"{place}: a list of messages is expected, not {described(value)}.")
    messages = tuple(message_of(each, f"{place}, message {i}") for i, each in enumerate(value, 1))
    if any(message["role"] == "system" for message in messages[1:]):
        raise InputError(f"{place}: a system message must be the first message.")
    if not any(message["role"] == "user" for message in messages):
        raise InputError(f"{place}: no message has the role user.")
    if strip_tags:
        messages = tuple(
            message | {"content": TAG.sub("", message["content"]).strip()}
            if message["role"] == "user"
            else message
            for message in messages
        )
    for i, message in enumerate(messages, 1):
        if message["role"] == "user" and not message["content"].strip():
            raise InputError(f"{place}, message {i}: the user's message has no text.")
    try:
        json.dumps(messages, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON allows
        raise InputError(f"{place}: not UTF-8.") from None
    except TypeError as error:
        raise InputError(f"{place}: a message is not plain data ({error}).") from None
    return messages


def completion_of(value: Any, prompt: Any) -> list[Any] | None:
    """Returns the messages of an answer that is a list of them; as JSON text beside JSON text."""
    if isinstance(value, str) and isinstance(prompt, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if not isinstance(value, list | tuple) or not value:
        return None
    return list(value) if all(isinstance(x, Mapping) for x in value) else None


def continued(
    prompt: Sequence[Message], completion: Sequence[Any], place: str, **options: bool
) -> tuple[Message, ...]:
    """Returns a conversation and the messages that go on with it, which alone are trained."""
    whole = conversation([*prompt, *completion], place, **options)
    if whole[-1]["role"] != "assistant":
        raise InputError(f"{place}: the last message must be of the assistant.")
    before = [
        {k: v for k, v in message.items() if k not in KEYS} | {"train": False}
        if message["role"] == "assistant"
        else message
        for message in prompt
    ]
    return (*before, *whole[len(before) :])


def with_system(
    messages: tuple[Mapping[str, Any], ...], text: Any, place: str
) -> tuple[Mapping[str, Any], ...]:
    """Returns a conversation that begins with the system message beside it, if it has none."""
    if not is_filled(text):
        return messages
    if not isinstance(text, str):
        raise InputError(f"{place}: a text is expected, not {described(text)}.")
    if messages[0]["role"] != "system":
        return ({"role": "system", "content": text}, *messages)
    if messages[0]["content"] != text:
        warn_once(
            "The system message beside a conversation (data.system_key) is not read where the "
            "conversation has one of its own."
        )
    return messages


@cache
def warn_once(message: str) -> None:
    """Logs a warning, and the same one only once."""
    log.warning(message)


def tools_of(value: Any, place: str, *, table: bool = False) -> tuple[Message, ...] | None:
    """Returns the tools of a row, as chat templates take them, or None if it has none."""
    value = given(value, table, f"{place}: the text is not a list of tools in JSON.")
    if value is MISSING or value is None:
        return None
    if not isinstance(value, list | tuple) or not all(isinstance(x, Mapping) for x in value):
        raise InputError(f"{place}: a list of mappings is expected, not {described(value)}.")
    return tuple(map(dict, value)) or None


def given(value: Any, table: bool, problem: str) -> Any:
    """Returns the value of a field, read if it is JSON text, without the nulls of a table."""
    if not isinstance(value, str):
        return without_nulls(value) if table else value
    try:
        return json.loads(value)  # its nulls are the author's, also in a table
    except (ValueError, RecursionError):
        raise InputError(problem) from None


def message_of(value: Any, place: str) -> Message:
    """Returns one message with the field names and roles of chat templates.

    A field of the message that is null counts as absent. A content becomes one text, and the
    arguments of a tool call become an object, in which nulls stay.
    """
    if not isinstance(value, Mapping):
        raise InputError(f"{place}: a mapping is expected, not {described(value)}.")
    message: Message = {str(name): each for name, each in value.items() if each is not None}
    if "role" not in message:
        message = {OTHER_NAMES.get(name, name): each for name, each in message.items()}
        message["role"] = OTHER_NAMES.get(str(message.get("role")), message.get("role"))
    given = str(message["role"])
    if given == "function_call":
        message = with_calls_of(message, place)
    role = message["role"] = OTHER_ROLES.get(given, given)
    if role not in ROLES:
        raise InputError(f"{place}: the role must be one of {', '.join(ROLES)}, not {given!r}.")
    if message.get("function_call"):
        raise InputError(f"{place}: function_call is not read by templates: write tool_calls.")
    if media := [name for name in MEDIA if is_filled(message.get(name))]:
        raise InputError(f'{place}: "{media[0]}" is not empty, but only texts are supported.')
    content = message.get("content", "" if message.get("tool_calls") else None)
    if isinstance(content, list | tuple):
        parts = [part if isinstance(part, Mapping) else {} for part in content]
        texts = [part.get("text") for part in parts if part.get("type", "text") == "text"]
        if len(texts) < len(parts) or not all(isinstance(text, str) for text in texts):
            raise InputError(f"{place}: only texts are supported as parts of a content.")
        content = "".join(map(str, texts))
    if not isinstance(content, str):
        raise InputError(f"{place}: the content must be a text, not {described(content)}.")
    if "tool_calls" in message:
        calls = message["tool_calls"]
        if not isinstance(calls, list | tuple) or not all(isinstance(x, Mapping) for x in calls):
            raise InputError(f"{place}: tool_calls must be a list of mappings.")
        message["tool_calls"] = []
        for call in calls:
            function = call.get("function", call)  # some files write the function alone
            name = function.get("name") if isinstance(function, Mapping) else None
            if not isinstance(name, str) or not name:
                raise InputError(f"{place}: a tool call must name its function.")
            try:
                own = dict(function) | {"arguments": arguments_of(function.get("arguments"))}
            except ValueError:
                raise InputError(
                    f"{place}: the arguments of the call of {name} must be a JSON object."
                ) from None
            if function is not call:
                number = {} if call.get("id") is None else {"id": call["id"]}
                own = number | {"type": "function", "function": own}
            message["tool_calls"].append(own)
    return message | {"content": content}


def with_calls_of(message: Message, place: str) -> Message:
    """Returns a message whose content, a call or a list of them as JSON, is its `tool_calls`."""
    content = message.pop("content", None)
    try:
        calls = json.loads(content) if isinstance(content, str) else content
    except (ValueError, RecursionError):
        calls = None
    calls = [calls] if isinstance(calls, Mapping) else calls
    if not isinstance(calls, list | tuple) or not calls:
        raise InputError(
            f'{place}: the text of function_call must be a call as JSON, {{"name": ..., '
            '"arguments": {...}}, or a list of them.'
        )
    return message | {"tool_calls": calls}


def arguments_of(value: Any) -> dict[str, Any]:
    """Returns the arguments of a tool call as an object; OpenAI's API writes them as JSON text.

    Raises:
      ValueError: they are no object.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else {}
        except RecursionError as error:
            raise ValueError(str(error)) from None
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"an object is expected, not {described(value)}")
    return dict(value or {})


def for_request(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Returns the messages of a request of OpenAI's protocol, whose arguments are JSON text."""
    sent = []
    for message in map(dict, messages):
        if message.get("tool_calls"):
            message["tool_calls"] = list(map(dict, message["tool_calls"]))
            for call in message["tool_calls"]:
                if "function" in call:
                    arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
                    call["function"] = dict(call["function"]) | {"arguments": arguments}
        sent.append(message)
    return sent


def without_nulls(value: Any) -> Any:
    """Returns the value without mapping entries that are None, at any depth.

    Columns of Parquet and of `datasets` have all fields in all rows, so that arguments that only
    other rows have are None there. In JSON a null is the author's, and stays.
    """
    if isinstance(value, Mapping):
        return {str(k): without_nulls(each) for k, each in value.items() if each is not None}
    if isinstance(value, list | tuple):
        return [without_nulls(each) for each in value]
    return value


def described(value: Any) -> str:
    """Returns the type of a value in words, for an error message."""
    if isinstance(value, list | tuple | str) and not value:
        return "an empty one"
    return "nothing" if value is None else type(value).__name__
