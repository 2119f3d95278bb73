"""Capabilities: values by which a run sends data, starts a program, or uses a variable or a file.

The type of an argument declares one, in any class that a `_target_` names:

    url: Address
    key_variable: Variable | None = None
    paths: tuple[ReadPath, ...] = ()

A value of such an argument takes effect if the command line gives it, if it is in the package's
own YAML files, or if `allow=[...]` on the command line, or the environment variable RL4P_ALLOW,
names it or what it is below. The recipes of a folder that this user has called their own use what
they were trusted with (`own_folder.py`). Any other YAML file and any run folder may come from
anyone: with a value from there the configuration is refused, unless it is a local file of data.
"""

import os
import re
import shlex
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import unquote

from rl4p.base.address import holds_secret
from rl4p.base.errors import InputError
from rl4p.configuration.own_folder import OwnFolder
from rl4p.configuration.quoting import override
from rl4p.configuration.suggestions import write
from rl4p.configuration.targets import is_node, locate, type_hints
from rl4p.configuration.tree import below, join, leaves
from rl4p.configuration.trust import CONF, text_of_yaml
from rl4p.configuration.yaml_file import is_own

ALLOW_VARIABLE = "RL4P_ALLOW"


class Capability(Enum):
    """What a value is used for."""

    ADDRESS = "an address that the run sends to"
    HOST = "a host, and its port, that the run connects to"
    VARIABLE = "an environment variable that the run reads"
    READ = "a path that the run reads"
    WRITTEN = "a place that the run writes to"
    WORD = "a word of a command that the run starts"
    CODE = "an option of a library, which may name code that it runs"


Address = Annotated[str, Capability.ADDRESS]
HostAndPort = Annotated[str, Capability.HOST]
Variable = Annotated[str, Capability.VARIABLE]
ReadPath = Annotated[str, Capability.READ]
WrittenPath = Annotated[str, Capability.WRITTEN]
Word = Annotated[str, Capability.WORD]
Setting = Annotated[Any, Capability.CODE]

# The keys of Hydra with places that are written; the schemas of its plugins have no such types.
OF_HYDRA = (
    "run.dir",
    "sweep.dir",
    "sweep.subdir",
    "launcher.submitit_folder",
    "launcher.temp_folder",
)
OF_LAUNCHERS = ("/.submitit/%j", "/.submitit/%j/")  # in the folder of a sweep
# Files of data, of models and of templates. Keys and passwords have other names.
DATA = frozenset(
    (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".safetensors", ".jinja")
)
ON_THE_HUB = re.compile(r"(?!\.)[\w.-]+/(?!\.)[\w.-]+(@[\w.-]+)?")  # OWNER/NAME@REVISION


class Use(NamedTuple):
    """A value that is a capability."""

    key: str
    value: str
    capability: Capability


def uses(value: Any, trusted: Collection[str], key: str = "") -> Iterator[Use]:
    """Yields the capabilities in a tree of nodes, by the types of their arguments.

    Args:
      value: plain containers, whose targets are trusted.
    """
    if isinstance(value, list):
        for i, element in enumerate(value):
            yield from uses(element, trusted, f"{key}[{i}]")
    elif isinstance(value, Mapping):
        target = value["_target_"] if is_node(value) else None
        hints = type_hints(locate(target, trusted, join(key, "_target_"))) if target else {}
        for name, child in value.items():
            place = join(key, name)
            choices = set(literals(hints.get(name)))
            for capability in dict.fromkeys(capabilities(hints.get(name))):
                for leaf, each in leaves(child, place):
                    if isinstance(each, str) and each not in choices:
                        yield Use(leaf, each, capability)
            yield from uses(child, trusted, place)


def capabilities(hint: Any) -> Iterator[Capability]:
    """Yields the capabilities in an annotation, at any depth."""
    if isinstance(hint, Capability):
        yield hint
    parts = hint if isinstance(hint, list) else typing.get_args(hint)
    for part in (*parts, getattr(hint, "__value__", None)):  # the value of a `type` statement
        if part is not None:
            yield from capabilities(part)


def literals(hint: Any) -> Iterator[Any]:
    """Yields the values of the `Literal` types in an annotation, which need no capability."""
    if typing.get_origin(hint) is Literal:
        yield from typing.get_args(hint)
    else:
        for part in typing.get_args(hint):
            yield from literals(part)


def uses_of_hydra(hydra: Mapping[str, Any], sweep_folder: str) -> Iterator[Use]:
    """Yields the places that Hydra writes to, but for a launcher's own place in a sweep."""
    own = [f"{sweep_folder}{place}" for place in OF_LAUNCHERS]
    for name in OF_HYDRA:
        value = below(hydra, name)
        if isinstance(value, str) and value not in own:
            yield Use(f"hydra.{name}", value, Capability.WRITTEN)


def refuse_ungiven(
    listed: Sequence[Use],
    keys: Collection[str],
    allowed: Collection[str],
    *,
    conf: Path,
    config_dir: str | None,
    own: OwnFolder | None = None,
) -> None:
    """Refuses capabilities that come from a file which anyone may have written.

    Args:
      allowed: the values, addresses and folders that it allows; RL4P_ALLOW allows more.
      conf: the folder of the package's own YAML files, whose values are trusted.
      config_dir: the folder with further YAML files, whose own files may be read.
      own: the same folder, if no other file of somebody gives values; its recipes may be trusted.
    """
    allowed = (*allowed, *os.environ.get(ALLOW_VARIABLE, "").split())
    typed = {(use.value, use.capability) for use in listed if use.key.partition("[")[0] in keys}
    others = [
        use
        for use in listed
        if (use.value, use.capability) not in typed
        and not any(covers(each, use) for each in allowed)
        and not ends_a_line(use.value, conf)
        and not (use.capability is Capability.READ and harmless(use.value, config_dir))
    ]
    if own is not None:
        others = list(untrusted(others, listed, own))
    if not others:
        return
    are = "; ".join(f"{use.key}={use.value} is {use.capability.value}" for use in others)
    values = list(dict.fromkeys(use.value for use in others))
    word = override("allow", values[0])
    if len(values) > 1:
        quoted = (override("", value).removeprefix("=") for value in values)
        word = f"allow=[{','.join(quoted)}]"
    yours = f"if the recipes in {own.folder} are yours, add trust=true once; or, " if own else ""
    raise InputError(
        f"{are}. A file gives {'this value' if len(others) == 1 else 'these values'}, and anyone "
        f"may have written it: {yours}if you trust it, add {shlex.quote(word)}."
    )


@lru_cache(maxsize=1024)  # which takes milliseconds, and each composition asks for the same values
def ends_a_line(value: str, conf: Path) -> bool:
    """Returns whether a value stands alone at the end of a line of the package's own YAML files."""
    pattern = rf"(?m)[:-] [\"']?{re.escape(value)}[\"']?( +#.*)?$"
    return re.search(pattern, text_of_yaml(conf)) is not None


def untrusted(others: Sequence[Use], listed: Sequence[Use], own: OwnFolder) -> Iterator[Use]:
    """Yields the uses that the recipes of a folder are not trusted with.

    With `trust=true` they are trusted with all. A list, such as a command, is trusted as a whole.

    Args:
      others: the uses that nothing else permits.
      listed: all uses of the configuration.
    """
    values: dict[tuple[str, Capability], list[str]] = {}
    for use in listed:
        values.setdefault((list_of(use.key), use.capability), []).append(use.value)
    remembered = {}
    for use in others:
        place = list_of(use.key)
        text = "\0".join([place, use.capability.name, *values[place, use.capability]])
        on_disk = use.capability in (Capability.READ, Capability.WRITTEN)
        if on_disk and "://" not in use.value:
            if not (own.is_known or is_data(use)):
                yield use
        elif own.given:
            remembered[text] = f"{use.key}={use.value}"
        elif not own.holds(text):
            yield use
    if own.given:
        own.remember(remembered)


def list_of(key: str) -> str:
    """Returns the key of the list that a value is in, or that of the value."""
    return re.sub(r"(\[\d+\])+$", "", key)


def is_data(use: Use) -> bool:
    """Returns whether a path is read, and is a file of data by its name, or a folder with some.

    Nothing of it can leave the machine. What is hidden, or below a hidden folder, is no data.
    """
    path = Path(use.value).expanduser().resolve()
    here = Path.cwd()
    parts = path.relative_to(here).parts if path.is_relative_to(here) else path.parts
    if use.capability is not Capability.READ or any(part.startswith(".") for part in parts):
        return False
    if not path.is_dir():
        return path.suffix in DATA
    return any(each.suffix in DATA for name in ("*", "*/*") for each in path.glob(name))


def refuse_mistyped(listed: Sequence[Use]) -> None:
    """Refuses paths and addresses that are empty, a shell's variable, or HOST:PORT alone."""
    for key, value, capability in listed:
        if capability not in (Capability.READ, Capability.ADDRESS, Capability.HOST):
            continue
        if not value.strip():
            raise InputError(f"{key} is empty: write a value (is a variable of the shell not set?)")
        if variable := re.match(r"\$\w+", value):
            raise InputError(
                f"{key}={value} has a variable of the shell that the shell did not replace: set "
                f"{variable[0][1:]}, and write {key}={value} without single quotes."
            )
        if capability is Capability.ADDRESS and re.match(r"[\w.-]+:\d+(/|$)", value):
            problem = f"{key}={value} does not say how to reach the server"
            word = f"http://{value}"
            raise InputError(write(problem, [word if "[" in key else override(key, word)]))


def refuse_of_file(
    path: Path, listed: Sequence[Use], allowed: Sequence[str], keys: Collection[str] = ()
) -> None:
    """Refuses capabilities in a file of a run folder, unless this user's own commands wrote it."""
    if not is_own(path):
        refuse_ungiven(listed, keys, allowed, conf=CONF, config_dir=None)


def covers(allowed: str, use: Use) -> bool:
    """Returns whether a value that is allowed is the value of a use, or above it."""
    if allowed == use.value:
        return True
    exact = Capability.VARIABLE, Capability.WORD, Capability.CODE
    if use.capability in exact or not allowed:
        return False
    if "://" in allowed or "://" in use.value:
        above = allowed.rstrip("/") + "/"
        return ".." not in unquote(use.value) and use.value.startswith(above)
    if use.capability in (Capability.ADDRESS, Capability.HOST):
        return False
    path, folder = (Path(each).expanduser().resolve() for each in (use.value, allowed))
    return path.is_relative_to(folder)


def harmless(value: str, config_dir: str | None) -> bool:
    """Returns whether a path is a name on the hub, or a file beside the YAML files that name it."""
    path = Path(value).expanduser()
    if not os.path.lexists(path):
        return ON_THE_HUB.fullmatch(value) is not None
    return config_dir is not None and path.resolve().is_relative_to(Path(config_dir).resolve())


def refuse_secrets(words: Sequence[str], tree: Any = None) -> None:
    """Refuses an address with a secret: a word of a command line, or a value of a configuration."""
    keys = []
    for word in words:
        if "//" in word and holds_secret(word):
            key = re.match(r"[+~-]*([\w.@/-]+)=", word)
            keys.append(key[1] if key else "A word")
    for name, value in leaves(tree):
        is_address = isinstance(value, str) and "//" in value and not re.search(r"\s", value)
        if is_address and holds_secret(value):
            keys.append(name)
    if keys:
        raise InputError(
            f"{keys[0]} has a user name, a password or a token in an address, which would be saved "
            "with the run: leave it out, and name an environment variable that has it with "
            "key_variable=NAME (MLflow reads MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD "
            "and MLFLOW_TRACKING_TOKEN, and object stores the variables of their libraries, such "
            "as AWS_ACCESS_KEY_ID)."
        )
