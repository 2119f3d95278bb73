"""The weights of a server: their replacement, their checksums, and the sleep without them."""

import ctypes
import gc
import logging
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import getitem
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.base.errors import InputError, RunError
from rl4p.base.types import Params
from rl4p.distributed.placement import like_of
from rl4p.engine.serving.scheduler import Scheduler
from rl4p.model.families import FAMILIES, Tensor
from rl4p.model.families.wrappers import split
from rl4p.model.folder import check_files
from rl4p.model.huggingface import read_config, read_part
from rl4p.model.model_tensors import check_fit, held_tensors, model_tensors, stacked_index
from rl4p.model.policy import Policy
from rl4p.model.tensor_files import (
    INDEX,
    SINGLE,
    Algorithm,
    StoredTensor,
    checksums_of,
    stored_tensors,
)

log = logging.getLogger(__name__)

TRIM_BYTES = 2**25  # of old arrays, after which their memory is returned

GIVEN_BACK = "The weights were given back (a sleep of level 2): load weights first."


class Replacement:
    """A function that replaces parameters by the tensors of a folder.

    It takes parameters in sampling form (`Policy.for_sampling`) and changes them in place, one
    after another, so that the host and the devices hold one parameter more than the model. Each
    keeps its dtype and its sharding. It raises RunError if the files change meanwhile; the
    parameters are then partly old and partly new.

    The files are open from the beginning, so that they can be read to the end. `close` closes them.
    """

    def __init__(self, folder: Path, policy: Policy, stored: dict[str, StoredTensor]) -> None:
        self.folder, self.policy = folder, policy
        with ExitStack() as stack:
            paths = {tensor.file for tensor in stored.values()}
            files = {path: stack.enter_context(path.open("rb", buffering=0)) for path in paths}
            self.stored = {
                name: replace(tensor, opened=files[tensor.file]) for name, tensor in stored.items()
            }
            self.files = stack.pop_all()
        self.names = frozenset(stored)

    def __call__(self, params: Params) -> Params:
        with self.files:
            # `for_sampling` may share them with the trainer.
            for name in params.keys() - {"layers"}:
                params[name] = jax.tree.map(lambda x: x, params[name])
            parameters: dict[tuple, list[Tensor]] = {}
            stacked = isinstance(params["layers"], Mapping)
            for tensor in held_tensors(self.policy.decoder.config, stacked=stacked):
                if tensor.name in self.stored:
                    parameters.setdefault(tensor.path, []).append(tensor)
            freed = release()
            for path, tensors in parameters.items():
                node = reduce(getitem, path[:-1], params)
                try:
                    node[path[-1]] = read(node[path[-1]], tensors, self.stored)
                except (InputError, OSError) as error:
                    raise RunError(
                        f"{self.folder} changed or failed while it was read, and the weights are "
                        f"now partly old and partly new: {error}"
                    ) from error
                freed += node[path[-1]].nbytes
                if freed >= TRIM_BYTES:
                    freed = release()
                if path[-1] == "kernel" and "lora_b" in node:  # the new kernel has it merged
                    node["lora_b"] = jnp.zeros_like(node["lora_b"], device=node["lora_b"].sharding)
            return params

    def close(self) -> None:
        self.files.close()


def replacement(folder: Path, policy: Policy) -> Replacement:
    """Checks a folder completely, and returns the replacement of parameters by its tensors.

    Args:
      folder: a folder with config.json and safetensors. It may lack config.json, and tensors, which
        then keep their values.

    Raises:
      InputError: the folder is incomplete or broken, or does not fit the model. The error does not
        say what is in a folder that has no weights.
    """
    try:
        ours = policy.decoder.config
        stored, _ = split(ours.wrapper, stored_tensors(folder))
        if (path := folder / "config.json").is_file():
            config = read_config(folder)
            differing = [
                f"{name} is {getattr(config, name)}, not {value}"
                for name, value in vars(ours).items()
                if getattr(config, name) != value
            ]
            if differing:
                raise InputError(f"{folder} is of another model: {'; '.join(differing)}.")
        elif os.path.lexists(path):
            raise InputError(f"{path} is not a regular file.")
        else:
            check_files(folder)
        if not stored:
            raise InputError(f"{folder} has no tensors.")
        shapes = jax.eval_shape(policy.decoder.init, jax.random.key(0))
        tensors = FAMILIES[policy.decoder.config.family].tensors(policy.decoder.config)
        tied = policy.decoder.config.tied_embedding
        check_fit(folder, stored, tensors, shapes, tied=tied, complete=False)
        return Replacement(folder, policy, stored)
    except (InputError, OSError, ValueError) as error:
        if isinstance(error, InputError) and may_be_described(folder):
            raise
        log.warning("The weights in %.200r cannot be loaded: %.400s", str(folder), error)
        raise InputError(
            f"{folder} cannot be used: it must be a folder with {SINGLE}, or with {INDEX} and its "
            "files, which the server can read."
        ) from None


def may_be_described(folder: Path) -> bool:
    """Returns whether an error may describe a folder: one with weights and without links."""
    try:
        return any((folder / name).is_file() for name in (SINGLE, INDEX)) and not any(
            path.is_symlink() for path in (folder / "config.json", *folder.glob("*.safetensors*"))
        )
    except OSError:
        return False


def release() -> int:
    """Returns the memory of arrays without references to the system, and returns 0."""
    gc.collect(0)  # only now JAX releases arrays that came from NumPy
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of Linux's C library
    if trim is not None:
        trim(0)
    return 0


def read(old: jax.Array, tensors: list[Tensor], stored: dict[str, StoredTensor]) -> jax.Array:
    """Returns a parameter read from the files, with the dtype and the sharding of the old one.

    Experts that are not in the files keep their old values.
    """
    whole = not stacked_index(tensors[0]) or len(tensors) == old.shape[0]
    part = partial(read_part, tensors=tensors, stored=stored, shape=old.shape, dtype=old.dtype)

    def of(index: Any) -> np.ndarray:
        if whole:
            return part(index)
        return part(index, start=next(x.data for x in old.addressable_shards if x.index == index))

    return jax.make_array_from_callback(old.shape, old.sharding, of).block_until_ready()


def checksums(policy: Policy, params: Params, algorithm: Algorithm = "crc32") -> dict[str, str]:
    """Returns the checksum of each tensor by its name, as files of merged parameters have it."""
    tensors = model_tensors(policy.decoder, params, lambda _, array: array.dtype)
    return checksums_of(tensors, algorithm)


@dataclass
class Sleep:
    """Removes the weights of a paused scheduler, and restores them."""

    scheduler: Scheduler
    shapes: Any = None  # the shapes of the weights while it sleeps; None while it does not
    weights: Params | None = None  # what the host keeps of them; None if they are dropped

    def begin(self, *, keep: bool) -> None:
        """Frees the memory of the weights and of the cache.

        Args:
          keep: whether the host keeps the weights.
        """

        def release() -> None:
            scheduler = self.scheduler
            scheduler.batch.clear()
            self.shapes = like_of(scheduler.params)
            self.weights = jax.device_get(scheduler.params) if keep else None
            scheduler.params = {}

        self.scheduler.run_between_calls(release).result()

    def end(self) -> None:
        """Takes the memory again. Dropped weights must be loaded before anything is decoded."""

        def take() -> None:
            scheduler, shardings = self.scheduler, jax.tree.map(lambda x: x.sharding, self.shapes)
            weights = self.weights
            if weights is None:
                weights = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self.shapes)
                scheduler.broken = GIVEN_BACK
            scheduler.params = jax.device_put(weights, shardings)
            self.shapes = self.weights = None

        self.scheduler.run_between_calls(take).result()
