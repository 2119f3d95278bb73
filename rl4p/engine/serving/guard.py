"""The check of who may use the server: clients with the token, or programs of this machine."""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from rl4p.engine.serving.http_errors import HttpError

LOOPBACK = ("localhost", "127.0.0.1", "::1")
OPEN = ("/health",)  # paths that need no token


@dataclass(frozen=True, kw_only=True)
class Guard:
    """The check of each request.

    Without a token, a web page must not reach the server through the browser of this machine. So
    the Host header has to name this machine, and the Origin header has to agree with it.

    Attributes:
      token: None for no token.
    """

    token: str | None

    def check(self, path: str, headers: Mapping[bytes, bytes]) -> None:
        """Refuses a request that must not be server."""
        if self.token is not None:
            if path not in OPEN:
                self.check_token(headers.get(b"authorization", b""))
            return
        host = headers.get(b"host", b"").decode("latin-1")
        if hostname(f"//{host}") not in LOOPBACK:
            raise HttpError(
                "The server has no token, so it answers only to localhost and 127.0.0.1.",
                status=403,
            )
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").rpartition("//")[2] != host:
            raise HttpError("Pages of other sites must not use this server.", status=403)

    def check_token(self, authorization: bytes) -> None:
        assert self.token is not None
        kind, _, token = authorization.partition(b" ")
        right = hmac.compare_digest(token.strip(), self.token.encode())
        if kind.lower() != b"bearer" or not right:
            raise HttpError(
                "The token is missing or wrong: send the header Authorization: Bearer TOKEN.",
                status=401,
                code="invalid_api_key",
            )


def hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
