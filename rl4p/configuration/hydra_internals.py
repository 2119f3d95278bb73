"""The internal names of Hydra that rl4p needs: only this file imports `hydra._internal`.

Hydra's public API is a decorator around `main`, which composes and starts in one call. The checks
of rl4p come between the two, so they need the parts that the decorator uses:

    Hydra, get_args_parser        compose, show and start a job after the check of its configuration
    create_config_search_path     a search path from a folder that is not a Python package
    ConfigLoaderImpl              the loader, whose subclass checks what every composition returns
    ConfigRepository, CachingConfigRepository, FileConfigSource
                                  the YAML files behind the loader, whose sizes are checked
    Callbacks                     the callbacks of a sweep that is resumed
    BasicSweeper                  the jobs of a sweep, in Hydra's own order

Two functions replace others of Hydra: `replace_save_config` the one that writes the files of a run,
and `omit_unused_choices` one that takes a fifth of the time of a composition.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hydra._internal import defaults_list
from hydra._internal.callbacks import Callbacks
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path, get_args_parser
from hydra.core import utils
from omegaconf import DictConfig

__all__ = [
    "BasicSweeper",
    "CachingConfigRepository",
    "Callbacks",
    "ConfigLoaderImpl",
    "ConfigRepository",
    "FileConfigSource",
    "Hydra",
    "create_config_search_path",
    "get_args_parser",
    "omit_unused_choices",
    "replace_save_config",
]


def replace_save_config(save: Callable[[DictConfig, str, Path], None]) -> None:
    """Replaces the function by which Hydra writes the files of `.hydra`."""
    utils._save_config = save


def omit_unused_choices() -> None:
    """Has Hydra copy the choices of all groups only for a defaults list with an interpolation.

    Hydra makes this copy for every file that it reads. Repeated calls have no effect.
    """
    defaults_list._create_interpolation_map = _choices


_all_choices = defaults_list._create_interpolation_map


def _choices(overrides: Any, defaults: list[Any], self_added: bool) -> Any:
    """Returns what the interpolations of a defaults list are resolved with."""
    needed = any(not each.is_self() and each.is_interpolation() for each in defaults)
    return _all_choices(overrides, defaults, self_added) if needed else None
