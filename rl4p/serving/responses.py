"""What an endpoint answers with: JSON, a text, or a stream of events."""

import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

DONE = b"data: [DONE]\n\n"


class JsonResponse(NamedTuple):
    """An answer of one JSON value."""

    value: Any
    status: int = 200


class TextResponse(NamedTuple):
    """An answer of text; `kind` is its content type."""

    text: str
    kind: str = "text/plain; charset=utf-8"


class EventStream(NamedTuple):
    """An answer of server-sent events, each chunk one or several of them."""

    chunks: AsyncIterator[bytes]


def encoded(value: Any) -> bytes:
    """Returns the JSON of a value without spaces."""
    return json.dumps(value, separators=(",", ":")).encode()


def event(value: Any) -> bytes:
    """Returns a server-sent event with a JSON value."""
    return b"data: " + encoded(value) + b"\n\n"
