"""Options of configuration groups, as Hydra composes them."""

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

CONF = Path(__file__).resolve().parents[1] / "conf"


def keys_of(path: Path) -> dict[str, Any]:
    """Returns the keys of an option: those of the option that it is made of, and its own."""
    own: Any = OmegaConf.to_container(OmegaConf.load(path))  # to PyYAML 1e-4 is a string
    parents = [name for name in own.pop("defaults", []) if name != "_self_"]
    keys: dict[str, Any] = {}
    for name in parents:
        keys |= keys_of(path.with_name(f"{name}.yaml"))
    return keys | own
