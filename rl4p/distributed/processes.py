"""The processes of a run: each runs the same program and owns some of the devices.

Arrays are global: all processes create them together (`place`). A process can read the shards of
other processes only if all processes call `to_host`. Texts belong to one process. Only process 0
writes files.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import NamedSharding, PartitionSpec
from omegaconf import DictConfig, OmegaConf

from rl4p.base.errors import InputError, RunError, Stopped
from rl4p.configuration.bounds import Natural, Positive
from rl4p.configuration.capability import HostAndPort
from rl4p.distributed.connections import Connections

_joined: list[Connections] = []


@dataclass(frozen=True, kw_only=True)
class ProcessOptions:
    """The options of `mesh` that name the processes of a run.

    Attributes:
      coordinator, processes, process: the host:port of process 0, the number of processes, and the
        index of this one; None for a single process. `processes=auto` takes them from the cluster.
      initialization_timeout: seconds to wait for all processes.
      heartbeat_timeout: seconds without a heartbeat after which a process counts as frozen, and
        the run ends.
    """

    coordinator: HostAndPort | None = None
    processes: Positive | Literal["auto"] | None = None
    process: Natural | None = None
    initialization_timeout: Positive = 120
    heartbeat_timeout: Positive = 60


@contextmanager
def join_processes(config: DictConfig) -> Iterator[bool]:
    """Joins the other processes of `mesh.processes`, so that JAX sees the devices of all of them.

    An error in one process ends all: the others name that process and exit with code 1.

    Yields:
      Whether this is process 0, which alone writes files.

    Raises:
      InputError: the keys of `mesh` are incomplete, or the processes' configurations differ.
      RunError: a process is missing.
    """
    read = from_cluster if config.mesh.processes == "auto" else from_keys
    settings = read(config.mesh)
    if settings is None:
        yield True
        return
    coordinator, processes, process, devices = settings
    host, _, port = coordinator.rpartition(":")
    timeout = config.mesh.initialization_timeout
    connections = Connections(process, processes, config.mesh.heartbeat_timeout)
    connections.connect(host.strip("[]"), int(port) - 1, run=digest(config), timeout=timeout)
    with connections:  # after the import of JAX, so that our atexit handler runs before JAX's
        try:
            jax.distributed.initialize(
                coordinator,
                processes,
                process,
                local_device_ids=devices,
                cluster_detection_method="deactivate",
                initialization_timeout=timeout,
                # JAX aborts a process without a summary, so it has to be later than we are.
                heartbeat_timeout_seconds=2 * config.mesh.heartbeat_timeout + 60,
            )
        except RuntimeError as error:
            raise RunError(f"Process {process} of {processes} cannot join: {error}") from error
        _joined.append(connections)
        yield process == 0


def from_keys(mesh: DictConfig) -> tuple[str, int, int, None] | None:
    """Returns coordinator, processes, process and devices; None for a single process."""
    if (mesh.coordinator, mesh.processes, mesh.process) == (None, None, None):
        return None
    if None in (mesh.coordinator, mesh.processes, mesh.process):
        raise InputError(
            "Set mesh.coordinator=HOST:PORT, mesh.processes and mesh.process together. On a "
            "cluster that provides them, set only mesh.processes=auto."
        )
    host, _, port = mesh.coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 1 < int(port) < 65536:
        raise InputError(f"mesh.coordinator={mesh.coordinator} must have the form HOST:PORT.")
    if mesh.process >= mesh.processes:
        raise InputError(
            f"mesh.process={mesh.process}: there are {mesh.processes} processes, numbered from 0."
        )
    return None if mesh.processes == 1 else (mesh.coordinator, mesh.processes, mesh.process, None)


def from_cluster(mesh: DictConfig) -> tuple[str, int, int, Any] | None:
    """Returns what `from_keys` does, read by JAX from SLURM, Open MPI, Kubernetes or a TPU host."""
    from jax._src.clusters import ClusterEnv  # jax.distributed.initialize uses it too

    detected = ClusterEnv.auto_detect_unset_distributed_params(
        mesh.coordinator, None, mesh.process, None, None, mesh.initialization_timeout
    )
    coordinator, processes, process, devices = detected
    if coordinator is None or processes is None or process is None:
        raise InputError(
            "mesh.processes=auto found no cluster that provides the number of processes: set "
            "mesh.coordinator=HOST:PORT, mesh.processes and mesh.process."
        )
    return None if processes == 1 else (coordinator, processes, process, devices)


def digest(config: DictConfig) -> str:
    """Returns a hash of the configuration without `mesh.process`; it must agree everywhere."""
    content: Any = OmegaConf.to_container(config, resolve=False)
    content.pop("hydra", None)
    content["mesh"]["process"] = None
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def first() -> bool:
    """Returns whether this is process 0, which writes the files and prints the output."""
    return not _joined or _joined[-1].process == 0


def agreed(value: Any) -> Any:
    """Returns process 0's value, which JSON must be able to express; all processes must call."""
    return _joined[-1].agreed(value) if _joined else value


def anywhere(holds: bool) -> bool:
    """Returns whether the condition holds in any process; all processes must call this."""
    if jax.process_count() == 1:
        return holds
    return bool(np.any(process_allgather(np.asarray(holds))))


@contextmanager
def reporting_errors() -> Iterator[None]:
    """Reports an error to the other processes at once, before anything waits for them.

    If it is a consequence of another process's failure, a RunError that names that one is raised.
    """
    try:
        yield
    except Stopped:
        raise
    except BaseException as error:
        cause = _joined[-1].cause_of(error) if _joined else None
        if cause is not None:
            raise cause from error
        if _joined:
            _joined[-1].report_error(error)
        raise


@contextmanager
def before_exit_by_failure(call: Callable[[], object]) -> Iterator[None]:
    """Registers a function that is called before this process ends because another has failed.

    It is called in a thread: the main thread waits for the other process, and cannot clean up.
    """
    if not _joined:
        yield
        return
    calls = _joined[-1].before_exit
    calls.append(call)
    try:
        yield
    finally:
        calls.remove(call)


# Arrays.


def place(tree: Any, sharding: Any) -> Any:
    """Moves arrays to devices as `jax.device_put` does, also to devices of several processes.

    Every process must pass the same values. The sharding is one for all leaves, or a tree.
    """
    if jax.process_count() == 1:
        return jax.device_put(tree, sharding)
    leaves, structure = jax.tree.flatten(tree)
    one = isinstance(sharding, jax.sharding.Sharding)
    shardings = [sharding] * len(leaves) if one else structure.flatten_up_to(sharding)
    spread = {i for i, x in enumerate(leaves) if spans_processes(x)}
    # `jax.device_put` cannot reshard arrays of several processes, but a compiled function can.
    resharded = [
        i for i in spread if not leaves[i].sharding.is_equivalent_to(shardings[i], leaves[i].ndim)
    ]
    if resharded:
        targets = [shardings[i] for i in resharded]
        results = jax.jit(identity, out_shardings=targets)([leaves[i] for i in resharded])
        for i, x in zip(resharded, results, strict=True):
            leaves[i] = x
    for i in set(range(len(leaves))) - spread:
        leaves[i] = placed(leaves[i], shardings[i])
    return structure.unflatten(leaves)


def placed(x: Any, sharding: jax.sharding.Sharding) -> jax.Array:
    """Returns a global array, made from this process's copy of the value."""
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        # NumPy cannot hold typed keys, so their data is placed and wrapped again.
        data = placed(jax.random.key_data(x), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
    host = np.asarray(x)
    host = host.astype(jax.dtypes.canonicalize_dtype(host.dtype), copy=False)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def to_host(tree: Any) -> Any:
    """Copies arrays to the host; if they span several processes, all processes must call this."""
    if jax.process_count() > 1:
        leaves, structure = jax.tree.flatten(tree)
        parts = [
            i for i, x in enumerate(leaves) if spans_processes(x) and not x.is_fully_replicated
        ]
        if parts:  # one program gathers all of these arrays
            mesh = leaves[parts[0]].sharding.mesh
            everywhere = NamedSharding(mesh, PartitionSpec())
            whole = jax.jit(identity, out_shardings=everywhere)([leaves[i] for i in parts])
            for i, x in zip(parts, whole, strict=True):
                leaves[i] = x
        tree = structure.unflatten(leaves)
    return jax.device_get(tree)


def spans_processes(x: Any) -> bool:
    """Returns whether x is an array on devices of several processes."""
    return isinstance(x, jax.Array) and not x.is_fully_addressable


def identity(x: Any) -> Any:
    return x


def share(count: int) -> list[range]:
    """Divides `count` items in order, and returns the range of each process."""
    n = jax.process_count()
    bounds = [i * count // n for i in range(n + 1)]
    return [range(a, b) for a, b in pairwise(bounds)]


def gathered_rows(tree: Any, rows: list[range]) -> Any:
    """Returns arrays with the rows of all processes, on every host; all processes must call this.

    The host arrays of a process have its own `rows`, of which there is a range for each process.
    """
    widest = max(map(len, rows))

    def gathered(x: Any) -> np.ndarray:
        x = np.asarray(x)
        padded = np.zeros((widest, *x.shape[1:]), x.dtype)
        padded[: len(x)] = x
        parts = process_allgather(padded)
        return np.concatenate([part[: len(own)] for part, own in zip(parts, rows, strict=True)])

    return jax.tree.map(gathered, tree)
