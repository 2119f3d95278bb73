"""Trust: the code that a configuration may name, and the values that only a command line may give.

Trust comes from the words of the command line. A YAML file, a run folder and the overrides that a
folder recorded may come from anyone: they name the parts of rl4p, and nothing else.
"""

import difflib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from rl4p.configuration.moved import moved
from rl4p.errors import InputError

PACKAGE = Path(__file__).resolve().parents[1]
# In a wheel, conf is inside the package; in a checkout, it is next to the package.
CONF = next(filter(Path.is_dir, (PACKAGE / "conf", PACKAGE.parent / "conf")), PACKAGE / "conf")

TRUSTED = ("rl4p",)  # of which only the parts are targets
# With these keys Hydra defers or changes a call. They are not needed, and they hide the callee.
REFUSED_KEYS = ("_args_", "_convert_", "_partial_", "_recursive_")
# The keys of Hydra by which code runs, and a storage, from which a sampler reads pickled objects.
ONLY_WORDS = (
    "hydra.job.env_set",
    "hydra.launcher.additional_parameters",
    "hydra.launcher.setup",
    "hydra.sweeper.custom_search_space",
    "hydra.sweeper.storage",
)
SANDBOX = "sandbox"  # the option of graders; `none` runs answers with all rights of the user


@cache
def parts() -> frozenset[str]:
    """Returns the classes that the options of rl4p name: its only targets."""
    folders = [folder for folder in CONF.iterdir() if not folder.is_symlink()]
    files = [CONF / "config.yaml", *(file for each in folders for file in each.rglob("*.yaml"))]
    text = "\n".join(file.read_text() for file in files)
    return frozenset(re.findall(r"_target_: *[\"']?(rl4p\.[\w.]+)", text))


def join(key: str, name: object) -> str:
    """Returns the dotted key of a child."""
    return f"{key}.{name}" if key else str(name)


def did_you_mean(name: str, names: Iterable[str], form: str = "{}") -> str:
    """Returns a hint with the closest name, to end a sentence; "" if no name is close."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {form.format(near[0])}?" if near else ""


def names_in(trusted_targets: str | Iterable[str] | None) -> tuple[str, ...]:
    """Returns the names in `trusted_targets`, which is a list or a single name."""
    if isinstance(trusted_targets, str):
        return (trusted_targets,)
    return tuple(trusted_targets or ())


def check_trust(value: Any, trusted: Collection[str], key: str = "") -> None:
    """Refuses a `_target_` that is not trusted, anywhere in a tree, from its name alone."""
    if isinstance(value, list):
        for i, element in enumerate(value):
            check_trust(element, trusted, f"{key}[{i}]")
    elif isinstance(value, Mapping):
        for name, child in value.items():
            if name in REFUSED_KEYS:
                raise InputError(
                    f"{join(key, name)} is refused: only arguments can be next to _target_."
                )
            if name == "_target_":
                require_trust(child, trusted, join(key, name))
            check_trust(child, trusted, join(key, name))


def require_trust(name: Any, trusted: Collection[str], key: str) -> None:
    """Refuses a name, unless it is a part of rl4p or belongs to a trusted package.

    Prefixes are compared by whole dotted parts.
    """
    if not isinstance(name, str):
        raise InputError(f"{key} must be a dotted name, not {name!r}.")
    if name.startswith("rl4p."):
        if name in parts():
            return
        if (now := moved(name)) != name:
            raise InputError(f"{key}={name} is now called {now}.")
        hint = did_you_mean(name, sorted(parts())) or "."
        raise InputError(f"{key}={name} is not trusted: it is not a part of rl4p{hint}")
    if not any(f"{name}.".startswith(f"{prefix.rstrip('.')}.") for prefix in trusted):
        raise InputError(
            f"{key}={name} is not trusted: allowed are the parts of rl4p, and your own packages "
            "that trusted_targets=[...] lists on the command line."
        )


def refuse_unsaid(
    tree: Mapping[str, Any], words: Collection[str], trusted: Collection[str]
) -> None:
    """Refuses values that are trusted only as words of a command line.

    Args:
      tree: a resolved configuration.
      words: the keys that the command line sets.
      trusted: the packages that the command line trusts.

    Raises:
      InputError: a file gives such a value.
    """
    named = names_in(tree.get("trusted_targets"))
    if others := [str(name) for name in named if name not in trusted]:
        raise InputError(
            f"trusted_targets={','.join(others)} comes from a file, which cannot give trust: write "
            "it on the command line if you trust this code."
        )
    for key in ONLY_WORDS:
        for name, value in leaves(below(tree, key), key):
            is_set = os.environ.get(name.removeprefix("hydra.job.env_set.")) == value
            said = name.partition("[")[0] in words
            if value not in (None, [], {}) and not said and not is_set:
                raise InputError(
                    f"{name} comes from a file, and it can run code: write it on the command line "
                    "if you trust it."
                )
    for key in unsandboxed(tree):
        if key not in words:
            raise InputError(
                f"{key}=none comes from a file, and it runs the answers of the model with all your "
                f"rights: write {key}=none on the command line if you want that."
            )


def unsandboxed(tree: Any, key: str = "") -> Iterator[str]:
    """Yields the keys of the graders that run answers without a sandbox."""
    for name, value in leaves(tree, key):
        if value == "none" and re.fullmatch(rf"(.*\.)?{SANDBOX}", name):
            yield name


def leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yields the values in a tree with their keys; an empty mapping or list is a value."""
    if isinstance(value, Mapping) and value:
        for name, child in value.items():
            yield from leaves(child, join(key, name))
    elif isinstance(value, list) and value:
        for i, child in enumerate(value):
            yield from leaves(child, f"{key}[{i}]")
    else:
        yield key, value


def below(tree: Any, key: str) -> Any:
    """Returns the value at a dotted key; None if the tree has none."""
    for name in key.split("."):
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree
