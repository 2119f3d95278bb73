"""Signatures: a run folder that this user's own commands wrote is told from any other.

A run folder may come from anyone, and no file in it can prove who wrote it, except by a secret that
is not in it. The key of the signatures is a file of the user, outside of every run folder:
$XDG_STATE_HOME/rl4p/key, which is ~/.local/state/rl4p/key by default. A signature is a comment in
the last line of a YAML file. Without the key, no file is signed, and none counts as the user's own.
"""

import hmac
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from yaml import YAMLError

from rl4p.base.errors import InputError
from rl4p.configuration.yaml_file import text_of

MARK = "# signature: "
BYTES = 32


def key_file() -> Path:
    """Returns the path of the user's key."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local/state") / "rl4p/key"


def own_key() -> bytes | None:
    """Returns the key, which is made if it does not exist; None if it cannot be read or made.

    A key that other users can read or write is no secret, so that it is not used.
    """
    try:
        path = key_file()
        if not path.exists():
            make(path)
        status, key = path.stat(), path.read_bytes()
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        return None
    private = status.st_uid == os.getuid() and not stat.S_IMODE(status.st_mode) & 0o077
    return key if private and len(key) == BYTES else None


def make(path: Path) -> None:
    """Writes a new key, unless another process did so first."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_name(f"key.{os.getpid()}")
    try:
        with os.fdopen(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(secrets.token_bytes(BYTES))
        with suppress(FileExistsError):
            path.hardlink_to(new)
    finally:
        new.unlink(missing_ok=True)


def signed(name: str, text: str) -> str:
    """Returns the text of a YAML file with its signature; without a key, the text alone.

    Args:
      name: the name of the file, so that one file cannot stand for another.
    """
    key = own_key()
    return text if key is None else f"{text}{MARK}{code(key, name, text)}\n"


def is_own(path: Path, *, times: int = 1) -> bool:
    """Returns whether a file has the signature of this user for its name and content.

    Args:
      times: as in `yaml_file.read_yaml`.
    """
    try:
        text, mark, signature = text_of(path, times=times).rpartition(MARK)
    except (InputError, OSError, ValueError, YAMLError):
        return False
    key = own_key() if mark else None
    if key is None:
        return False
    return hmac.compare_digest(signature.strip().encode(), code(key, path.name, text).encode())


def code(key: bytes, name: str, text: str) -> str:
    return hmac.new(key, f"{name}\0{text}".encode(), "sha256").hexdigest()
