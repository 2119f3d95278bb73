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

`replace_save_config` replaces one more function of Hydra, in the module `hydra.core.utils`.
"""

from collections.abc import Callable
from pathlib import Path

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
    "replace_save_config",
]


def replace_save_config(save: Callable[[DictConfig, str, Path], None]) -> None:
    """Replaces the function by which Hydra writes the files of `.hydra`."""
    utils._save_config = save
