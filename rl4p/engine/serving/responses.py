"""The responses of endpoints: JSON, a text, or a stream of events."""

import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

DONE = b"data: [DONE]\n\n"


class JsonResponse(NamedTuple):
    """A response with a JSON value."""

    value: Any
    status: int = 200


class TextResponse(NamedTuple):
    """A response with a text; `kind` is its content type."""

    text: str
    kind: str = "text/plain; charset=utf-8"


class EventStream(NamedTuple):
    """A response of server-sent events; a chunk has one or several of them."""

    chunks: AsyncIterator[bytes]


def encoded(value: Any) -> bytes:
    """Returns the JSON of a value without spaces."""
    return json.dumps(value, separators=(",", ":")).encode()


def event(value: Any) -> bytes:
    """Returns a server-sent event with a JSON value."""
    return b"data: " + encoded(value) + b"\n\n"


def named_event(kind: str, **values: Any) -> bytes:
    """Returns a server-sent event with a name, which its JSON object has as `type`."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), encoded({"type": kind} | values))
