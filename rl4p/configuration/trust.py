"""Trust: the code that a configuration may name, and the values that only a command line may give.

Trust comes from the words of the command line. A YAML file, a run folder and the overrides that a
folder recorded may come from anyone: they name the parts of rl4p, and nothing else.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from rl4p.base.errors import InputError
from rl4p.configuration.suggestions import did_you_mean, write
from rl4p.configuration.tree import below, join, leaves

PACKAGE = Path(__file__).resolve().parents[1]
# In a wheel, conf is inside the package; in a checkout, it is next to the package.
CONF = next(filter(Path.is_dir, (PACKAGE / "conf", PACKAGE.parent / "conf")), PACKAGE / "conf")

TRUSTED = ("rl4p",)  # of which only the parts are targets
# With these keys Hydra defers or changes a call. They are not needed, and they hide the callee.
REFUSED_KEYS = ("_args_", "_convert_", "_partial_", "_recursive_")
# The keys of Hydra by which code runs or the environment is read, and a storage, from which a
# sampler reads pickled objects.
ONLY_WORDS = (
    "hydra.job.env_copy",
    "hydra.job.env_set",
    "hydra.launcher.additional_parameters",
    "hydra.launcher.setup",
    "hydra.sweeper.custom_search_space",
    "hydra.sweeper.storage",
)
SANDBOX = "sandbox"  # the option of graders; `none` runs answers with all rights of the user
# Hydra builds these nodes itself; each may also name the packages after it.
BUILT = {
    "callbacks": (),
    "launcher": ("hydra._internal.core_plugins", "hydra_plugins"),
    "sweeper": ("hydra._internal.core_plugins", "hydra_plugins", "optuna.samplers"),
}
LOGGING = ("job_logging", "hydra_logging")
# What `logging` may look up by name.
IN_LOGGING = (
    "logging.FileHandler",
    "logging.Formatter",
    "logging.NullHandler",
    "logging.StreamHandler",
    "colorlog.ColoredFormatter",
    "ext://sys.stdout",
    "ext://sys.stderr",
)
HANDLER_KEYS = {"class", "filename", "formatter", "level", "stream", "encoding", "errors"}
LOG = "${hydra.runtime.output_dir}/${hydra.job.name}.log"  # the only file that a log is written to


@cache
def parts() -> frozenset[str]:
    """Returns the classes that the options of rl4p name: its only targets."""
    return frozenset(re.findall(r"_target_: *[\"']?(rl4p\.[\w.]+)", text_of_yaml(CONF)))


@cache
def text_of_yaml(conf: Path) -> str:
    """Returns the text of all YAML files of a package, its recipes included."""
    folders = [folder for folder in conf.iterdir() if not folder.is_symlink()]
    files = [file for each in folders for file in each.rglob("*.yaml")]
    files += [*conf.glob("*.yaml"), *(conf / "experiment").glob("*.yaml")]
    return "\n".join(file.read_text("utf-8") for file in files)


def names_in(names: str | Iterable[str] | None) -> tuple[str, ...]:
    """Returns the names in `trusted_targets` or `allow`, which is a list or a single name."""
    if isinstance(names, str):
        return (names,)
    return tuple(names or ())


def check_names(names: Iterable[str]) -> None:
    """Refuses trusted names that are no names of packages, such as the file of a module."""
    for name in names:
        if not name.strip("."):
            continue  # it trusts nothing
        if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*\.?", name) or name.endswith(".py"):
            module = ".".join(part for part in Path(name).with_suffix("").parts if part not in "./")
            problem = f"trusted_targets={name} is not the name of a package or a module"
            if Path(name).suffix not in ("", ".py") or not module.replace(".", "").isidentifier():
                raise InputError(f"{problem}: write it as in `import package.module`.")
            raise InputError(write(problem, [f"trusted_targets={module}"]))


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
        hint = did_you_mean(name, sorted(parts())) or "."
        raise InputError(f"{key}={name} is not trusted: it is not a part of rl4p{hint}")
    if not any(f"{name}.".startswith(f"{prefix.rstrip('.')}.") for prefix in trusted):
        raise InputError(
            f"{key}={name} is not trusted: allowed are the parts of rl4p, and your own packages "
            "that trusted_targets=[...] lists on the command line."
        )


def refuse_unsaid(
    tree: Mapping[str, Any],
    words: Collection[str],
    trusted: Collection[str],
    allowed: Collection[str] = (),
) -> None:
    """Refuses values that are trusted only as words of a command line."""
    for key, given in (("trusted_targets", trusted), ("allow", allowed)):
        if others := [str(name) for name in names_in(tree.get(key)) if name not in given]:
            raise InputError(
                f"{key}={','.join(others)} comes from a file, which cannot give trust: write it on "
                "the command line if you trust it."
            )
    if tree.get("trust") and "trust" not in words:
        raise InputError(
            "trust=true comes from a file, which cannot give trust: write it on the command line "
            "if the recipes of --config-dir are yours."
        )
    for key in ONLY_WORDS:
        for name, value in leaves(below(tree, key), key):
            is_set = os.environ.get(name.removeprefix("hydra.job.env_set.")) == value
            given = name.partition("[")[0] in words
            if value not in (None, [], {}) and not given and not is_set:
                raise InputError(
                    f"{name} comes from a file, and it can run code or read a secret: write it on "
                    "the command line if you trust it."
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


def check_hydra(hydra: DictConfig, trusted: Collection[str]) -> None:
    """Refuses code that is not trusted, and files outside the run folder.

    Resolves the nodes that Hydra builds in place, so that Hydra builds what was checked.
    """
    for name in BUILT:
        try:
            with read_write(hydra), open_dict(hydra):
                if hydra[name] is not None:
                    OmegaConf.resolve(hydra[name])
        except OmegaConfBaseException as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"hydra.{name} cannot be resolved: {reason}.") from error
    tree: Any = OmegaConf.to_container(hydra, resolve=False)
    for name in BUILT:
        refuse_interpolations(tree[name], f"hydra.{name}")
    for name, node in tree.items():
        check_trust(node, (*TRUSTED, *trusted, *BUILT.get(name, ())), f"hydra.{name}")
    for name, value in leaves(tree["launcher"], "hydra.launcher"):
        if isinstance(value, str) and not value.isprintable():  # a line of a script for Slurm
            raise InputError(f"{name} must be one line, not {value!r}.")
    for name in LOGGING:
        check_logging(tree[name], f"hydra.{name}")
    if not re.fullmatch(r"[\w-]+", str(tree["job"]["name"])):
        raise InputError("hydra.job.name must be a plain name, because it names the log.")
    subdir = tree["output_subdir"]
    if subdir is not None and not re.fullmatch(r"\.?[\w-]+", str(subdir)):
        raise InputError(f"hydra.output_subdir must be the name of a folder, not {subdir!r}.")


def refuse_interpolations(value: Any, key: str) -> None:
    """Refuses values that change when they are resolved again."""
    for name, leaf in leaves(value, key):
        if isinstance(leaf, str) and "${" in leaf:
            raise InputError(f"{name} must be written out, not {leaf!r}.")


def check_logging(value: Any, key: str) -> None:
    """Checks a configuration of Python's logging."""
    for name, selector in selectors(value, key):
        if selector not in IN_LOGGING:
            require_trust(selector, (), name)
    handlers = value.get("handlers") if isinstance(value, Mapping) else None
    for name, handler in (handlers or {}).items() if isinstance(handlers, Mapping) else ():
        place = f"{key}.handlers.{name}"
        if not isinstance(handler, Mapping) or not handler.keys() <= HANDLER_KEYS:
            raise InputError(f"{place} may only have the keys {', '.join(sorted(HANDLER_KEYS))}.")
        if handler.get("filename", LOG) != LOG:
            raise InputError(
                f"{place}.filename={handler['filename']} is refused: a log is written to {LOG}."
            )
        refuse_interpolations({**handler, "filename": None}, place)
    if isinstance(handlers, Mapping):
        value = {**value, "handlers": None}
    refuse_interpolations(value, key)


def selectors(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yields the values by which logging looks up code (class, (), ext:// and cfg://)."""
    if isinstance(value, Mapping):
        for name, child in value.items():
            if name in ("class", "()"):
                yield join(key, name), child
            yield from selectors(child, join(key, name))
    elif isinstance(value, list):
        for child in value:
            yield from selectors(child, key)
    elif isinstance(value, str) and value.startswith(("ext://", "cfg://")):
        yield key, value
