"""A folder on a shared disk through which new weights reach the servers of a run."""

import atexit
import os
import re
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

from jax.tree_util import DictKey

from rl4p.distributed.partition import is_wider
from rl4p.errors import InputError, RunError
from rl4p.model.families import Tensor
from rl4p.model.huggingface import write_configs
from rl4p.model.model_tensors import model_tensors
from rl4p.model.policy import Policy
from rl4p.model.tensor_files import NewTensor, write_file, write_tensors
from rl4p.types import Array, Params

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
    have not changed is a hard link to that of the weights before.

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
        self.newest = self.path
        self.files: dict[str, dict[str, str]] = {}  # of the newest: file, tensor, checksum
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
        files: dict[str, dict[str, str]] = {}
        try:
            unfinished.mkdir()
            tensors = model_tensors(
                policy.decoder, policy.without_critic(params), partial(dtype_of, policy)
            )
            write = partial(self.write_shard, files)
            write_tensors(unfinished, tensors, self.shard_bytes, write)
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
        checksums = {name: digest for found in files.values() for name, digest in found.items()}
        exported = Exported(path=path, label=label, checksums=checksums)
        self.held.append(exported)
        self.newest, self.files = path, files
        return exported

    def write_shard(
        self, files: dict[str, dict[str, str]], path: Path, tensors: Sequence[NewTensor]
    ) -> None:
        """Writes one file, or links it to the same file of the newest weights."""
        before = self.files.get(path.name, {})
        same = list(before) == [tensor.name for tensor in tensors] and all(
            tensor.sha256() == before[tensor.name] for tensor in tensors
        )
        if same and linked(self.newest / path.name, path):
            files[path.name] = before
        else:
            files[path.name] = write_file(path, tensors)

    def add_tokenizer(self, folder: Path, policy: Policy) -> None:
        """Adds the tokenizer's files, which are written once and then linked."""
        once = self.path / ".tokenizer"
        if self.tokenizer is not policy.tokenizer:
            shutil.rmtree(once, ignore_errors=True)
            try:
                policy.tokenizer.save_pretrained(once)
            except Exception as error:  # the tokenizers library has no class for a full disk
                shutil.rmtree(once, ignore_errors=True)
                raise OSError(str(error)) from error
            self.tokenizer = policy.tokenizer
        for file in once.iterdir():
            if not linked(file, folder / file.name):
                shutil.copyfile(file, folder / file.name)

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
        self.held, self.files, self.tokenizer = [], {}, None
        shutil.rmtree(self.path, ignore_errors=True)


def dtype_of(policy: Policy, tensor: Tensor, array: Array) -> Any:
    """Returns the dtype of a tensor in the files, which is its dtype in the sampler."""
    path = tuple(map(DictKey, tensor.path))
    return policy.decoder.dtype if is_wider(path, array, policy.decoder.dtype) else array.dtype


def linked(file: Path, path: Path) -> bool:
    """Returns whether `path` became a hard link to the file; not every disk has hard links."""
    try:
        os.link(file, path)
    except OSError:
        return False
    return True
