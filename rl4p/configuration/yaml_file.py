"""YAML files that may come from anyone: their size is bounded, and the user's own are signed.

A few lines of `${a}${a}` can expand to more than fits in memory, so interpolations are bounded too.
OmegaConf resolves one whenever a value is read: whatever reads such files calls
`limit_interpolations` first. From then on, ``${oc.env:NAME}`` reads only variables that a command
line names in this way, or that the recipes of a folder are trusted with (`own_folder.py`): another
file cannot read the environment.

A run folder may come from anyone, and no file in it can prove who wrote it, except by a secret that
is not in it. The key of the signatures is a file of the user, outside of every run folder:
$XDG_STATE_HOME/rl4p/key, which is ~/.local/state/rl4p/key by default. A signature is a comment in
the last line of a YAML file. Without the key, no file is signed, and none counts as the user's own.
"""

import hmac
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import yaml
from omegaconf import Container, DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException
from omegaconf.resolvers import oc
from yaml import YAMLError

from rl4p.base.errors import InputError, reason_of

MOST_BYTES = 2**20
MOST_VALUES = 10_000  # after every alias is replaced by a copy of what it names
MOST_LEVELS = 50
# The plain scalars that are no texts. YAML 1.1 has more, so that 12:30 and 0755 would be other
# numbers, NO would be false, and 2026-01-31 a date.
SCALARS = {
    "bool": ("tTfF", r"true|True|TRUE|false|False|FALSE"),
    "int": ("-0123456789", r"0|-?[1-9][0-9]*"),
    "float": (
        "-.0123456789",
        r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]*(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)"
        r"|\.[0-9]+(?:[eE][-+][0-9]+)?|-?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
    ),
    "null": ("~nN\0", r"~|null|Null|NULL|"),
    "merge": ("<", "<<"),
}
_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class LOADER(_BASE):
    """A loader that keeps a plain scalar as its text, unless it is one of `SCALARS`."""

    yaml_implicit_resolvers: ClassVar[dict[str, list]] = {}

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        names = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:str":
                continue
            if key.value in names:
                problem = f"found duplicate key {key.value}"
                context = "while constructing a mapping", node.start_mark
                raise yaml.constructor.ConstructorError(*context, problem, key.start_mark)
            names.add(key.value)
        return super().construct_mapping(node, deep=deep)


for kind, (first, pattern) in SCALARS.items():
    LOADER.add_implicit_resolver(
        f"tag:yaml.org,2002:{kind}",
        re.compile(f"^(?:{pattern})$"),
        [letter.strip("\0") for letter in first],  # the null may be empty
    )


class Text(StringIO):
    """The text of a file, whose name PyYAML puts into its errors."""

    def __init__(self, text: str, path: Path):
        super().__init__(text)
        self.name = str(path)


def load_yaml(path: Path) -> DictConfig | ListConfig:
    """Returns the configuration in a file.

    Raises:
      ValueError: OmegaConf cannot represent it, for example because of a broken interpolation.
      InputError, OSError, yaml.YAMLError: as in `read_yaml`.
    """
    limit_interpolations()
    try:
        return configuration_of(text_of(path), path)
    except OmegaConfBaseException as error:
        raise ValueError(str(error)) from error


def configuration_of(text: str, path: Path) -> DictConfig | ListConfig:
    """Returns the configuration in the text of a file; an empty text is an empty configuration."""
    value = yaml.load(Text(text, path), LOADER)
    if value is not None and not isinstance(value, (dict, list)):
        raise ValueError(f"{path} is not a mapping.")
    return OmegaConf.create({} if value is None else value)


def read_yaml(path: Path, *, times: int = 1) -> Any:
    """Returns the content of a file as plain values.

    Args:
      times: the factor by which the limits of bytes and values are raised, for a file that holds
        many configurations.

    Raises:
      InputError: the file is not a regular one, or its content is too large or too deep.
      OSError, ValueError, yaml.YAMLError: the file cannot be read.
    """
    return yaml.load(Text(text_of(path, times=times), path), LOADER)


def read_mapping(path: Path) -> dict[str, Any]:
    """Returns the mapping in a file.

    Raises:
      InputError: the file cannot be read, or holds something else; the message names it.
    """
    try:
        content = read_yaml(path)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(f"{path} cannot be read: {reason_of(error)}.") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} is not a mapping.")
    return content


def text_of(path: Path, *, times: int = 1) -> str:
    """Returns the text of a YAML file, after a check of how much it describes.

    Raises:
      InputError, OSError, ValueError, yaml.YAMLError: as in `read_yaml`.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path} is not a regular file.")
    if status.st_size > (most := times * MOST_BYTES):
        raise InputError(f"{path} has {status.st_size:,} bytes: at most {most:,} are read.")
    text = path.read_text(encoding="utf-8")
    check_size(text, path, most_values=times * MOST_VALUES)
    return text


@lru_cache(maxsize=256)  # the files of one composition are read again by the next
def check_size(text: str, path: Path, *, most_values: int = MOST_VALUES) -> None:
    """Refuses the text of a file that describes many values or levels. It needs no recursion."""
    total, known = 0, {}  # the number of values, also by the anchor that names them
    levels: list[tuple[str | None, int]] = []  # anchors of open collections, and values before them
    for event in yaml.parse(Text(text, path), LOADER):
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = levels.pop()
            known[anchor] = total - before
        elif isinstance(event, yaml.CollectionStartEvent):
            levels.append((event.anchor, total))
            total += 1
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
            known[event.anchor] = 1
        elif isinstance(event, yaml.AliasEvent):
            within = any(event.anchor == anchor for anchor, _ in levels)
            total += most_values + 1 if within else known.get(event.anchor, 1)
        if len(levels) > MOST_LEVELS:
            raise InputError(f"{path} is nested too deep: at most {MOST_LEVELS} levels are read.")
        if total > most_values:
            raise InputError(
                f"{path} describes too much: at most {most_values:,} values with all aliases "
                "replaced."
            )


MOST_CHARACTERS = 2**20  # in the values of all interpolations together
COST = 100  # characters added for each interpolation, since an empty value takes time too

_seen: ContextVar[list[int] | None] = ContextVar("seen", default=None)  # characters so far
_resolve = Container.resolve_parse_tree
_variables: frozenset[str] = frozenset()  # that the command line reads
_NONE: Any = object()


def limit_interpolations() -> None:
    """Limits how much text each value expands to that is read from now on, in this process.

    Repeated calls have no effect. OmegaConf offers no setting for this, so that the call replaces
    the method by which it resolves interpolations.
    """
    Container.resolve_parse_tree = _bounded
    OmegaConf.register_new_resolver("oc.env", _environment, replace=True)


def refuse_variable(name: str, instead: str = "") -> None:
    """Refuses the environment variable that a file reads; `instead` is another way out."""
    raise InputError(
        f"a file reads the environment variable {name!s:.100}, and anyone may have written it: "
        f"{instead}write the key with ${{oc.env:{name!s:.100}}} on the command line if you trust it"
    )


_require: Callable[[str], None] = refuse_variable


def permit_variables(
    words: Sequence[str], require: Callable[[str], None] = refuse_variable
) -> None:
    """Permits ``${oc.env:NAME}`` only for the names that words of a command line read so.

    Args:
      require: raises an `InputError` for any other name that files may not read.
    """
    global _variables, _require
    names = re.findall(r"oc\.env:\s*['\"]?([A-Za-z_]\w*)", " ".join(words))
    _variables, _require = frozenset(names), require


def _environment(name: str, default: Any = _NONE) -> Any:
    """Returns an environment variable, for ``${oc.env:NAME}`` and ``${oc.env:NAME,DEFAULT}``."""
    if name not in _variables:
        _require(name)
    return oc.env(name) if default is _NONE else oc.env(name, default)


@contextmanager
def bounded_interpolations() -> Iterator[None]:
    """Limits how much text the interpolations resolved in a `with` block expand to, all together.

    Outside of a block the same limit applies to each value that is read.

    Raises:
      InputError: they expand to more, even if code in the block caught OmegaConf's error.
    """
    limit_interpolations()
    token = _seen.set(seen := [0])
    try:
        yield
    finally:
        _seen.reset(token)
        if seen[0] > MOST_CHARACTERS:
            raise InputError(
                f"The interpolations expand to more than {MOST_CHARACTERS:,} characters: write "
                "their values out."
            ) from None


def _bounded(self: Container, *args: Any, **options: Any) -> Any:
    """Resolves an interpolation as OmegaConf does, and counts the characters of its value."""
    if (seen := _seen.get()) is None:  # the value that is read, and not one within it
        try:
            with bounded_interpolations():
                return _bounded(self, *args, **options)
        except InputError as error:
            raise InterpolationResolutionError(str(error)) from None
    value = _resolve(self, *args, **options)
    seen[0] += COST + len(str(value))
    if seen[0] > MOST_CHARACTERS:
        raise InterpolationResolutionError("too many characters")
    return value


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
        if not (path := key_file()).exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            new = path.with_name(f"key.{os.getpid()}")
            try:
                descriptor = os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
                with os.fdopen(descriptor, "wb") as file:
                    file.write(secrets.token_bytes(BYTES))
                with suppress(FileExistsError):  # another process was the first
                    path.hardlink_to(new)
            finally:
                new.unlink(missing_ok=True)
        status, key = path.stat(), path.read_bytes()
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        return None
    private = status.st_uid == os.getuid() and not stat.S_IMODE(status.st_mode) & 0o077
    return key if private and len(key) == BYTES else None


def signed(name: str, text: str) -> str:
    """Returns the text of a YAML file with its signature; without a key, the text alone.

    Args:
      name: the name of the file, so that one file cannot stand for another.
    """
    key = own_key()
    return text if key is None else f"{text}{MARK}{code(key, name, text)}\n"


def is_own(path: Path, *, times: int = 1) -> bool:
    """Returns whether a file has the signature of this user for its name and content."""
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
