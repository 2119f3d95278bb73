"""Checks of addresses and of the variables of API keys; secrets in an address are refused."""

import os
import re
from urllib.parse import unquote, urlsplit

# Parts of an address in which programs put secrets.
USER_INFO = re.compile(r"(?:([\w+.-]*):)?[\\/]{2,}([^\\/@\s?#]*)@")
PARAMETER = re.compile(
    r"[?&;#][\w.~-]*(?:key|token|secret|passw|pwd|auth|sig|cred|code|session)[\w.~-]*=[^&;#\s]",
    re.IGNORECASE,
)


def check_address(url: str, option: str, *, example: str, key_option: str = "key_variable") -> None:
    """Checks that a text is an HTTP address without a password.

    Args:
      option: the name of the option with the address.
      example: an address as it should be written.
      key_option: the name of the option that names the environment variable of the key.

    Raises:
      ValueError: it is no address, or has a user name or a password, which would be saved.
    """
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a bracket without its pair, or a port that is no number below 65,536
        parts, valid = None, False
    if parts is None or not valid:
        shown = re.sub(r"(?<=//)[^/@]*@|^[^/@]*@", "", url)  # without what may be a password
        raise ValueError(f"{option}={shown} is not an address: write {example}.")
    if holds_secret(url):
        raise ValueError(
            f"{option} contains a user name, a password or a token, which would be saved: put an "
            f"API key into an environment variable and name that with {key_option}=NAME."
        )


def check_key_variable(name: str | None, option: str = "key_variable") -> None:
    """Refuses what cannot be the name of an environment variable.

    It may be the key itself, so the message does not repeat it.
    """
    if name is not None and not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise ValueError(
            f"{option} is not the name of an environment variable: write the name, such as "
            "SERVER_API_KEY, not the key."
        )


def api_key(name: str | None, option: str = "key_variable") -> str:
    """Returns the API key in an environment variable, which must be set; "" if none is named."""
    key = os.environ.get(name, "") if name else ""
    if name and not key:
        raise ValueError(f"{option}={name}: this environment variable is not set.")
    return key


def holds_secret(text: str) -> bool:
    """Returns whether a text has an address with a password, a token or a user of a web server.

    A database may have a user without a password, as in ``postgresql://USER@HOST/NAME``.
    """
    if any(PARAMETER.search(each) for each in (text, unquote(text)) if ":" in each):
        return True
    return any(
        ":" in unquote(user) or (scheme or "http").startswith(("http", "ws", "ftp"))
        for scheme, user in USER_INFO.findall(text)
        if user
    )
