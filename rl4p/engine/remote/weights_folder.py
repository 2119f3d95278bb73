"""A folder on a shared disk through which new weights reach the servers of a run."""

import atexit
import re
import shutil
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

from rl4p.base.errors import InputError, RunError
from rl4p.base.types import Params
from rl4p.distributed.partition import decoding_dtype
from rl4p.model.huggingface import write_configs
from rl4p.model.model_tensors import model_tensors
from rl4p.model.policy import Policy
from rl4p.model.tensor_files import WrittenFiles, linked, write_tensors
from rl4p.model.tokenizer import save_tokenizer

SHARD_BYTES = 2**28


@dataclass(frozen=True, kw_only=True)
class Exported:
    """Weights in a folder that is complete and never changes.

    Attributes:
      path: the absolute path of the folder.
      label: the name of the weights, such as the step that they come from.
      checksums: the SHA-256 of each tensor as it is in the files, by the tensor's name.
    """

    path: Path
    label: str
    checksums: dict[str, str]


class WeightsFolder:
    """A new folder within `parent` that holds the weights of one run, one subfolder each.

    A subfolder appears once it is complete. Transformers, vLLM and SGLang can open it: it has
    config.json, generation_config.json, safetensors and the tokenizer. Adapters are merged, and the
    matrices have the dtype of activations, as in the sampler of this process. A file whose tensors
    have not changed is a hard link to the same file of the weights before.

    A process that is killed leaves its folder behind.
    """

    def __init__(self, parent: Path, *, shard_bytes: int = SHARD_BYTES) -> None:
        """Creates the folder, and `parent` if it is not there.

        Raises:
          RunError: the folder cannot be created.
        """
        self.path = parent.expanduser().absolute() / f"weights-{token_hex(8)}"
        self.shard_bytes = shard_bytes
        self.count = 0
        self.held: list[Exported] = []
        self.newest: WrittenFiles | None = None
        self.tokenizer: Any = None
        try:
            self.path.mkdir(parents=True)
        except OSError as error:
            raise RunError(f"The folder for weights cannot be created: {error}.") from error
        atexit.register(self.close)

    def write(self, policy: Policy, params: Params, label: str) -> Exported:
        """Writes the trained parameters; the host holds one tensor more than them at a time.

        Raises:
          InputError: the label cannot be part of a folder's name.
          RunError: the weights could not be written. Nothing of them remains.
        """
        if not re.fullmatch(r"\w[\w.+-]*", label, re.ASCII):
            raise InputError(
                f"The label {label!r} of weights must consist of letters, digits and any of ._+-."
            )
        self.count += 1  # a path is never used twice, because a server may remember it
        path = self.path / f"{self.count}-{label}"
        unfinished = self.path / f".{path.name}"
        dtype_of = partial(decoding_dtype, dtype=policy.decoder.dtype)
        try:
            unfinished.mkdir()
            tensors = model_tensors(policy.decoder, policy.merged(params), dtype_of)
            files = write_tensors(unfinished, tensors, self.shard_bytes, self.newest)
            write_configs(
                unfinished,
                policy.decoder,
                policy.end_ids,
                pad_id=policy.pad_id,
                dtype=str(tensors[0].dtype),
            )
            self.add_tokenizer(unfinished, policy)
            unfinished.rename(path)
        except OSError as error:
            raise RunError(
                f"The weights {label} could not be written to {self.path}: {error}."
            ) from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        self.newest = replace(files, folder=path)
        checksums = {name: x for file in files.checksums.values() for name, x in file.items()}
        exported = Exported(path=path, label=label, checksums=checksums)
        self.held.append(exported)
        return exported

    def add_tokenizer(self, folder: Path, policy: Policy) -> None:
        """Adds the tokenizer's files, which are written once and then linked."""
        once = self.path / ".tokenizer"
        if self.tokenizer is not policy.tokenizer:
            shutil.rmtree(once, ignore_errors=True)
            try:
                save_tokenizer(policy.tokenizer, once)
            except OSError:
                shutil.rmtree(once, ignore_errors=True)
                raise
            self.tokenizer = policy.tokenizer
        shutil.copytree(once, folder, copy_function=link_or_copy, dirs_exist_ok=True)

    def keep(self, labels: Collection[str]) -> None:
        """Deletes all weights except the newest with each of these labels."""
        newest = {exported.label: exported.path for exported in self.held}
        paths = {path for label, path in newest.items() if label in labels}
        for exported in self.held:
            if exported.path not in paths:
                shutil.rmtree(exported.path, ignore_errors=True)
        self.held = [exported for exported in self.held if exported.path in paths]

    def close(self) -> None:
        """Deletes the folder and all that is in it."""
        atexit.unregister(self.close)
        self.held, self.newest, self.tokenizer = [], None, None
        shutil.rmtree(self.path, ignore_errors=True)


def link_or_copy(file: str, new: str) -> None:
    if not linked(Path(file), Path(new)):
        shutil.copyfile(file, new)
