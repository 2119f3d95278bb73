"""Requests to OpenAI-compatible chat servers (`POST /chat/completions`), and their responses."""

from collections.abc import Mapping, Sequence
from typing import Any

from rl4p.base.http import InvalidResponseError


def chat_body(
    model: str, messages: Sequence[Mapping[str, Any]], changes: Mapping[str, Any], **values: Any
) -> dict[str, Any]:
    """Returns the body of a request for one response.

    Args:
      changes: more fields, or other values; None leaves a field out.
      values: the fields beside the model and the messages; None leaves a field out.
    """
    body = {"model": model, "messages": messages} | values | dict(changes)
    return {name: value for name, value in body.items() if value is not None}


def read_chat(response: Any) -> tuple[str | None, Any]:
    """Returns the text of the first choice of a response, and why it ended.

    The text is None if the message has none. The reason is None if the choice names none.

    Raises:
      InvalidResponseError: there is no choice with a message, or its content is no text.
    """
    try:
        choice = response["choices"][0]
        text, reason = choice["message"]["content"], choice.get("finish_reason")
    except (TypeError, LookupError, AttributeError) as error:
        cause = f"{type(error).__name__}: {error}"
        raise InvalidResponseError(f"an answer without a response ({cause})") from None
    if not isinstance(text, str | None):
        raise InvalidResponseError("an answer whose content is no text")
    if text is not None:
        # JSON allows lone surrogates, which UTF-8 does not.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text, reason
