"""The responses of endpoints: JSON, a text, a stream of events, or an error in OpenAI's shape."""

import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


LONGEST_MESSAGE = 2000  # characters; a message may repeat what the client has sent

DONE = b"data: [DONE]\n\n"


def shortened(message: object) -> str:
    """Returns the beginning of a message."""
    text = str(message)
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]}..."


class HttpError(Exception):
    """An HTTP error. Its message is one sentence.

    Attributes:
      status: the HTTP status.
      param: the field of the body that is wrong, if it is one.
      code: a word that programs can compare.
    """

    def __init__(
        self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(shortened(message))
        self.status = status
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """Returns the body of the response."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {
            "error": {
                "message": str(self),
                "type": TYPES.get(self.status, kind),
                "param": self.param,
                "code": self.code,
            }
        }


class ClientDisconnectError(Exception):
    """The client closed the connection before its response was complete."""


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
