"""The keys of configuration options, after Hydra's composition."""

from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rl4p.configuration.yaml_file import load_yaml

CONF = Path(__file__).resolve().parents[2] / "conf"


option = cache(load_yaml)  # PyYAML reads 1e-4 as a string


def keys_of(path: Path) -> dict[str, Any]:
    """Returns the keys of an option, including those of the options that it inherits from."""
    own: Any = OmegaConf.to_container(option(path))
    own.pop("defaults", None)
    keys: dict[str, Any] = {}
    for name in parents_of(path):
        keys |= keys_of(path.with_name(f"{name}.yaml"))
    return keys | own


def parents_of(path: Path) -> list[str]:
    """Returns the options of the same group that an option inherits from."""
    defaults: Any = OmegaConf.select(option(path), "defaults") or []
    # A mapping selects options of another group, whose keys are not inherited.
    return [name for name in defaults if isinstance(name, str) and name != "_self_"]
