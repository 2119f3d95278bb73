"""Conversations of a data set: lists of messages with roles, in the formats of files."""

import json
import re
from collections.abc import Mapping
from typing import Any

from rl4p.data.fields import MISSING
from rl4p.errors import InputError

ROLES = ("system", "user", "assistant", "tool")
# The names of the fields and of the roles in ShareGPT's format.
OTHER_NAMES = {"from": "role", "value": "content", "human": "user", "gpt": "assistant"}
TAG = re.compile(r"</?(?:think|answer)>", re.IGNORECASE)

Message = dict[str, Any]


def conversation(value: Any, place: str, *, strip_tags: bool) -> tuple[Message, ...]:
    """Returns the messages of a row, as chat templates take them.

    Args:
      value: a list of mappings with `role` and `content`, or with `from` and `value`; or such a
        list as JSON text. A content is a text, or a list of ``{"type": "text", "text": ...}``.
      place: the row and its field, for error messages.
      strip_tags: whether user messages lose their think and answer tags.

    Raises:
      InputError: the value is no conversation with a message of the user; names the place.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise InputError(f"{place}: the text is not a list of messages in JSON.") from None
    if not isinstance(value, list | tuple) or not value:
        raise InputError(f"{place}: a list of messages is expected, not {described(value)}.")
    messages = tuple(message_of(each, f"{place}, message {i}") for i, each in enumerate(value, 1))
    if any(message["role"] == "system" for message in messages[1:]):
        raise InputError(f"{place}: a system message must be the first message.")
    if not any(message["role"] == "user" for message in messages):
        raise InputError(f"{place}: no message has the role user.")
    if strip_tags:
        messages = tuple(
            message | {"content": without_tags(message["content"])}
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


def tools_of(value: Any, place: str) -> tuple[Message, ...] | None:
    """Returns the tools of a row, as chat templates take them, or None if it has none.

    Raises:
      InputError: the value is no list of mappings; names the place.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise InputError(f"{place}: the text is not a list of tools in JSON.") from None
    if value is MISSING or value is None:
        return None
    if not isinstance(value, list | tuple) or not all(isinstance(x, Mapping) for x in value):
        raise InputError(f"{place}: a list of mappings is expected, not {described(value)}.")
    return tuple(without_nulls(each) for each in value) or None


def message_of(value: Any, place: str) -> Message:
    """Returns one message with the field names and roles of chat templates."""
    if not isinstance(value, Mapping):
        raise InputError(f"{place}: a mapping is expected, not {described(value)}.")
    message: Message = without_nulls(value)
    if "role" not in message:
        message = {OTHER_NAMES.get(name, name): each for name, each in message.items()}
        message["role"] = OTHER_NAMES.get(str(message.get("role")), message.get("role"))
    role = message["role"]
    if role not in ROLES:
        raise InputError(f"{place}: the role must be one of {', '.join(ROLES)}, not {role!r}.")
    content = message.get("content", "" if message.get("tool_calls") else None)
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, Mapping) else None for part in content]
        texts = [part for part in parts if isinstance(part, str)]
        if len(texts) < len(parts):
            raise InputError(f"{place}: only texts are supported as parts of a content.")
        content = "".join(texts)
    if not isinstance(content, str):
        raise InputError(f"{place}: the content must be a text, not {described(content)}.")
    return message | {"content": content}


def without_nulls(value: Any) -> Any:
    """Returns the value without mapping entries that are None, at any depth.

    Columns of tables have all fields in all rows, so that a message without `tool_calls` has None
    there, and templates would take it for a call.
    """
    if isinstance(value, Mapping):
        return {str(k): without_nulls(each) for k, each in value.items() if each is not None}
    if isinstance(value, list | tuple):
        return [without_nulls(each) for each in value]
    return value


def without_tags(text: str) -> str:
    """Returns a text without think and answer tags; what they enclose stays."""
    return TAG.sub("", text).strip()


def described(value: Any) -> str:
    """Returns the type of a value in words, for an error message."""
    if isinstance(value, list | tuple | str) and not value:
        return "an empty one"
    return "nothing" if value is None else type(value).__name__
