"""The check of the `hydra` node, by which Hydra itself builds objects and writes logs."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from rl4p.configuration.trust import TRUSTED, check_trust, join, leaves, require_trust
from rl4p.errors import InputError

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
OF_HANDLERS = {"class", "filename", "formatter", "level", "stream"}
LOG = "${hydra.runtime.output_dir}/${hydra.job.name}.log"  # the only file that a log is written to


def check_hydra(hydra: DictConfig, trusted: Collection[str]) -> None:
    """Refuses code that is not trusted, and files outside the run folder.

    Resolves the nodes that Hydra builds in place, so that Hydra builds what was checked.

    Args:
      hydra: the `hydra` node of a composed configuration.
      trusted: the packages that the command line trusts.

    Raises:
      InputError: the node names such code or such a file.
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
    """Refuses values that change when they are resolved again.

    Raises:
      InputError: a value holds an interpolation.
    """
    for name, leaf in leaves(value, key):
        if isinstance(leaf, str) and "${" in leaf:
            raise InputError(f"{name} must be written out, not {leaf!r}.")


def check_logging(value: Any, key: str) -> None:
    """Checks a configuration of Python's logging.

    Raises:
      InputError: it names other classes than `IN_LOGGING`, or another file than the log of the run.
    """
    for name, selector in selectors(value, key):
        if selector not in IN_LOGGING:
            require_trust(selector, (), name)
    handlers = value.get("handlers") if isinstance(value, Mapping) else None
    for name, handler in (handlers or {}).items() if isinstance(handlers, Mapping) else ():
        place = f"{key}.handlers.{name}"
        if not isinstance(handler, Mapping) or not handler.keys() <= OF_HANDLERS:
            raise InputError(f"{place} may only have the keys {', '.join(sorted(OF_HANDLERS))}.")
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
