"""The processes of a run: each runs the same program, and has some of the devices.

Arrays are of all processes together (`place`), and no process can read what lies on another's
devices, unless all ask for it (`to_host`). Texts are of one process, files of the first.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import NamedSharding, PartitionSpec
from omegaconf import DictConfig, OmegaConf

from rl4p.distributed.roll_call import RollCall
from rl4p.errors import InputError, RunError, Stopped

_joined: list[RollCall] = []


@contextmanager
def join(config: DictConfig) -> Iterator[bool]:
    """Meets the other processes of `mesh.processes`; within, JAX sees the devices of all.

    An error in one of them ends all: the others say which one it was, and exit by 1.

    Yields:
      Whether this is the first, which alone writes files.

    Raises:
      InputError: the keys do not say where and which, or the processes' configurations differ.
      RunError: one is missing.
    """
    found = of_cluster(config.mesh) if config.mesh.processes == "auto" else of_keys(config.mesh)
    if found is None:
        yield True
        return
    coordinator, processes, process, devices = found
    host, _, port = coordinator.rpartition(":")
    timeout = config.mesh.initialization_timeout
    call = RollCall(process, processes)
    call.gather(host.strip("[]"), int(port) - 1, run=digest(config), timeout=timeout)
    with call:  # after JAX was imported: its atexit comes after ours
        try:
            jax.distributed.initialize(
                coordinator,
                processes,
                process,
                local_device_ids=devices,
                cluster_detection_method="deactivate",
                initialization_timeout=timeout,
            )
        except RuntimeError as error:
            raise RunError(f"Process {process} of {processes} cannot join: {error}") from error
        _joined.append(call)
        yield process == 0


def of_keys(mesh: DictConfig) -> tuple[str, int, int, None] | None:
    """Coordinator, processes, process and devices; None for a process that is alone.

    Raises:
      InputError: some of the three keys are missing, or do not fit.
    """
    if (mesh.coordinator, mesh.processes, mesh.process) == (None, None, None):
        return None
    if None in (mesh.coordinator, mesh.processes, mesh.process):
        raise InputError(
            "mesh.coordinator=HOST:PORT, mesh.processes and mesh.process go together; on a "
            "cluster that says them itself, mesh.processes=auto stands alone."
        )
    host, _, port = mesh.coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 1 < int(port) < 65536:
        raise InputError(f"mesh.coordinator={mesh.coordinator} is not HOST:PORT.")
    if mesh.process >= mesh.processes:
        raise InputError(
            f"mesh.process={mesh.process}: there are {mesh.processes} processes, numbered from 0."
        )
    return None if mesh.processes == 1 else (mesh.coordinator, mesh.processes, mesh.process, None)


def of_cluster(mesh: DictConfig) -> tuple[str, int, int, Any] | None:
    """The same, as JAX reads it from SLURM, Open MPI, Kubernetes or a TPU's host.

    Raises:
      InputError: no such cluster has started this process.
    """
    from jax._src.clusters import ClusterEnv  # what jax.distributed.initialize asks

    found = ClusterEnv.auto_detect_unset_distributed_params(
        mesh.coordinator, None, mesh.process, None, None, mesh.initialization_timeout
    )
    coordinator, processes, process, devices = found
    if coordinator is None or processes is None or process is None:
        raise InputError(
            "mesh.processes=auto finds no cluster that says how many there are: give "
            "mesh.coordinator=HOST:PORT, mesh.processes and mesh.process."
        )
    return None if processes == 1 else (coordinator, processes, process, devices)


def digest(config: DictConfig) -> str:
    """Of what all processes must have in common."""
    content: Any = OmegaConf.to_container(config, resolve=False)
    content.pop("hydra", None)
    content["mesh"]["process"] = None
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def first() -> bool:
    """Whether this process writes files and speaks to people."""
    return not _joined or _joined[-1].process == 0


def agreed(value: Any) -> Any:
    """What the first process says, of strings, numbers and None; all must ask."""
    return _joined[-1].agreed(value) if _joined else value


def anywhere(holds: bool) -> bool:
    """Whether it holds in any process; all must ask."""
    if jax.process_count() == 1:
        return holds
    return bool(np.any(process_allgather(np.asarray(holds))))


@contextmanager
def blaming() -> Iterator[None]:
    """Tells the other processes of an error at once, before anything waits for them.

    Raises:
      RunError: it came of another's end; that one is named.
    """
    try:
        yield
    except Stopped:
        raise
    except BaseException as error:
        blamed = _joined[-1].blames(error) if _joined else None
        if blamed is not None:
            raise blamed from error
        if _joined:
            _joined[-1].confess(error)
        raise


# Arrays.


def place(tree: Any, sharding: Any) -> Any:
    """`jax.device_put`, also on devices of several processes, which all have the same values.

    Args:
      sharding: one for all leaves, or a tree of them.
    """
    if jax.process_count() == 1:
        return jax.device_put(tree, sharding)
    leaves, structure = jax.tree.flatten(tree)
    one = isinstance(sharding, jax.sharding.Sharding)
    shardings = [sharding] * len(leaves) if one else structure.flatten_up_to(sharding)
    spread = {i for i, x in enumerate(leaves) if is_spread(x)}
    moved = [i for i in spread if not lies_so(leaves[i], shardings[i])]
    if moved:
        to = [shardings[i] for i in moved]
        found = jax.jit(same, out_shardings=to)([leaves[i] for i in moved])
        for i, x in zip(moved, found, strict=True):
            leaves[i] = x
    for i in set(range(len(leaves))) - spread:
        leaves[i] = placed(leaves[i], shardings[i])
    return structure.unflatten(leaves)


def placed(x: Any, sharding: jax.sharding.Sharding) -> jax.Array:
    """From this process's copy of the value."""
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        data = placed(jax.random.key_data(x), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
    host = np.asarray(x)
    host = host.astype(jax.dtypes.canonicalize_dtype(host.dtype), copy=False)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def to_host(tree: Any) -> Any:
    """`jax.device_get`, also of what lies on devices of several processes; all must ask."""
    if jax.process_count() > 1:
        leaves, structure = jax.tree.flatten(tree)
        parts = [i for i, x in enumerate(leaves) if is_spread(x) and not x.is_fully_replicated]
        if parts:  # one program for all of them
            mesh = leaves[parts[0]].sharding.mesh
            everywhere = NamedSharding(mesh, PartitionSpec())
            whole = jax.jit(same, out_shardings=everywhere)([leaves[i] for i in parts])
            for i, x in zip(parts, whole, strict=True):
                leaves[i] = x
        tree = structure.unflatten(leaves)
    return jax.device_get(tree)


def is_spread(x: Any) -> bool:
    """Whether no process has all of it at hand."""
    return isinstance(x, jax.Array) and not x.is_fully_addressable


def lies_so(x: jax.Array, sharding: jax.sharding.Sharding) -> bool:
    return x.sharding.is_equivalent_to(sharding, x.ndim)


def same(x: Any) -> Any:
    return x


def share(count: int) -> list[range]:
    """So many things in order, each process's part of them."""
    n = jax.process_count()
    bounds = [i * count // n for i in range(n + 1)]
    return [range(a, b) for a, b in pairwise(bounds)]


def gathered_rows(tree: Any, rows: list[range]) -> Any:
    """Host arrays whose rows each process has some of, whole on all of them; all must ask.

    Args:
      tree: of arrays with this process's rows first.
      rows: of each process, in order, together all.
    """
    widest = max(map(len, rows))

    def of(x: Any) -> np.ndarray:
        x = np.asarray(x)
        padded = np.zeros((widest, *x.shape[1:]), x.dtype)
        padded[: len(x)] = x
        parts = process_allgather(padded)
        return np.concatenate([part[: len(own)] for part, own in zip(parts, rows, strict=True)])

    return jax.tree.map(of, tree)
