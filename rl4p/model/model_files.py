"""The files of `model.path`: a model's folder, or an adapter's folder with that of its base."""

import os
from pathlib import Path
from typing import NamedTuple

from rl4p.base.errors import InputError
from rl4p.base.storage import is_address
from rl4p.configuration.capability import ALLOW_VARIABLE, Capability, Use, covers
from rl4p.model.adapter import Adapter, read_adapter
from rl4p.model.folder import (
    ADAPTER,
    ADAPTER_CONFIG,
    GENERATION,
    file_names,
    lasting_name,
    matching,
    model_folder,
    tokenizer_files,
)


class ModelFiles(NamedTuple):
    """Where the files of a model are.

    Attributes:
      weights: the folder of config.json and of the weights.
      tokenizer: the folder of the tokenizer, which is the adapter's if that has one.
      generation: generation_config.json, of the adapter if that has one.
      base: the name by which others find `weights`.
      adapter: the adapter of these weights, if there is one.
    """

    weights: Path
    tokenizer: Path
    generation: Path
    base: str
    adapter: Adapter | None = None


def model_files(path: str, *, weights: bool = True) -> ModelFiles:
    """Returns the files of a model or of an adapter with its base, fetched as `model_folder` does.

    Args:
      weights: whether the weights of the model are needed; those of an adapter are always fetched.

    Raises:
      InputError: one of them is not there, or the adapter is broken or of an unsupported kind.
    """
    folder = model_folder(path, weights=weights)
    if not has_adapter(folder):
        return ModelFiles(folder, folder, folder / GENERATION, lasting_name(path))
    adapter = read_adapter(folder)
    base = base_folder(adapter, weights=weights)
    if has_adapter(base):
        raise InputError(
            f"{folder} is an adapter of {adapter.base}, which has an adapter itself: merge the two "
            "into one model first."
        )
    own = folder / GENERATION
    return ModelFiles(
        weights=base,
        tokenizer=folder if tokenizer_files(folder) else base,
        generation=own if own.is_file() else base / GENERATION,
        base=lasting_name(adapter.base),
        adapter=adapter,
    )


def check_adapter(path: str) -> None:
    """Raises InputError if a folder on this machine has an adapter that cannot be read."""
    if has_adapter(Path(path)):
        read_adapter(Path(path))


def has_adapter(folder: Path) -> bool:
    return bool(matching(file_names(folder), ADAPTER))


def base_folder(adapter: Adapter, *, weights: bool) -> Path:
    """Returns the folder of an adapter's base model.

    A file of somebody names it, so that an object store needs a word of this user.
    """
    name, where = adapter.base, f"{adapter.folder / ADAPTER_CONFIG}: base_model_name_or_path"
    use = Use(where, name, Capability.READ)
    allowed = os.environ.get(ALLOW_VARIABLE, "").split()
    if is_address(name) and not any(covers(each, use) for each in allowed):
        raise InputError(
            f"{where} is the address {name}, and anyone may have written it: if you trust it, set "
            f"the environment variable {ALLOW_VARIABLE}={name}."
        )
    try:
        return model_folder(name, weights=weights)
    except InputError as error:
        raise InputError(f"{where} is {name}, which cannot be read: {error}") from None
