"""Folders of safetensors: checked completely, read in pieces, written one tensor at a time.

The safetensors library only checks files. It is not used to read, because it maps a full file into
the memory of the process, nor to write, because it needs all tensors in memory at once.
"""

import hashlib
import json
import logging
import os
import re
import stat
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open

from rl4p.base.errors import InputError

log = logging.getLogger(__name__)

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = {"F32": jnp.dtype("float32"), "F16": jnp.dtype("float16"), "BF16": jnp.dtype("bfloat16")}
MOST_BYTES = 2**28  # of a JSON file
PIECE_BYTES = 2**20  # the most that is read at a time, so that it is still in the cache when copied
THREADS = min(4, os.cpu_count() or 1)  # that read, write and sum tensors
MOST_PROBLEMS = 5  # in one message; a model may have thousands of tensors
ROWS = 16  # of a transposed matrix to copy at a time


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """A tensor in a file, which has not been read yet.

    Attributes:
      kind: the name of its dtype in safetensors.
      start: the offset of its first byte in the file.
      bytes: its size.
      opened: the file, if it is open already and stays so.
    """

    file: Path
    kind: str
    shape: tuple[int, ...]
    start: int
    bytes: int
    opened: FileIO | None = None

    def pieces(self, rows: slice) -> Iterator[tuple[int, np.ndarray]]:
        """Yields the rows in pieces, each with the index of its first row."""
        dtype = np.dtype(np.uint8) if self.kind == "U8" else DTYPES[self.kind]
        row_bytes = dtype.itemsize * int(np.prod(self.shape[1:]))
        count = max(1, PIECE_BYTES // max(1, row_bytes))
        # A buffer would copy each piece again.
        opened = nullcontext(self.opened) if self.opened else self.file.open("rb", buffering=0)
        with opened as file:
            for first in range(rows.start, rows.stop, count):
                piece = np.empty((min(count, rows.stop - first), *self.shape[1:]), dtype)
                view = piece.reshape(-1).view(np.uint8).data
                at = self.start + first * row_bytes
                while view:  # without `seek`, since threads share an opened file
                    read = os.preadv(file.fileno(), [view], at)
                    if not read:
                        raise InputError(f"{self.file} became shorter while it was read.")
                    view, at = view[read:], at + read
                yield first, piece


def check_file(path: Path) -> None:
    """Raises InputError unless a file is regular (a device may have no end) and not too large."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path} is not a regular file.")
    if status.st_size > MOST_BYTES:
        raise InputError(f"{path} has {status.st_size:,} bytes: at most {MOST_BYTES:,} are read.")


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file; raises InputError if there is none."""
    check_file(path)
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}.") from None
    except RecursionError:
        raise InputError(f"{path} is nested too deep.") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} is not a JSON object.")
    return content


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Returns the tensors of a folder by name, from one file or from the files in its index.

    Raises:
      InputError: a file is missing or broken, or its tensors differ from those in the index.
    """
    if not (folder / INDEX).is_file():
        if not (folder / SINGLE).is_file():
            raise InputError(no_weights(folder))
        return read_header(folder / SINGLE)
    index = read_json(folder / INDEX)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{folder / INDEX} has no 'weight_map'.")
    for name, file in weight_map.items():
        if not isinstance(file, str) or not re.fullmatch(r"[^/\\]+\.safetensors", file):
            raise InputError(
                f"{folder / INDEX} puts {name} into {file!r}, which is not the name of a "
                "safetensors file in this folder."
            )
    names = sorted(set(weight_map.values()))
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        raise InputError(f"{folder / INDEX} names files that do not exist: {', '.join(absent)}.")
    by_file = {name: read_header(folder / name) for name in names}
    problems = [
        f"{name} is missing from {file}"
        for name, file in weight_map.items()
        if name not in by_file[file]
    ] + [
        f"{name} is in {file}, but the index does not list it there"
        for file in names
        for name in by_file[file]
        if weight_map.get(name) != file
    ]
    if problems:
        raise InputError(f"{folder / INDEX} does not match its files: {listed(problems)}.")
    stored = {name: by_file[file][name] for name, file in weight_map.items()}
    metadata = index.get("metadata")
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    if size is not None and size != (own := sum(tensor.bytes for tensor in stored.values())):
        log.warning("%s counts %s bytes, but its tensors have %d.", folder / INDEX, size, own)
    return stored


def listed(problems: Sequence[str]) -> str:
    """Returns the first problems in words, and the number of the others."""
    more = len(problems) - MOST_PROBLEMS
    return "; ".join(problems[:MOST_PROBLEMS]) + (f"; and {more:,} more" if more > 0 else "")


def no_weights(folder: Path) -> str:
    if shards := sorted(path.name for path in folder.glob("*.safetensors")):
        return f"{folder} has {', '.join(shards[:3])}, but no {SINGLE} and no {INDEX}."
    pickles = sorted(path.name for pattern in ("*.bin", "*.pt*") for path in folder.glob(pattern))
    if not pickles:
        return f"{folder} has no {SINGLE} and no {INDEX}."
    return (
        f"{folder} has its weights only as pickle ({', '.join(pickles)}), which can run code and "
        "is never opened: convert them to safetensors."
    )


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Returns the tensors of one file by name."""
    try:
        with safe_open(path, framework="numpy"):  # checks sizes, dtypes and offsets
            pass
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is not a complete safetensors file: {error}.") from None
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    return {
        name: StoredTensor(
            file=path,
            kind=entry["dtype"],
            shape=tuple(entry["shape"]),
            start=8 + size + entry["data_offsets"][0],
            bytes=entry["data_offsets"][1] - entry["data_offsets"][0],
        )
        for name, entry in header.items()
        if name != "__metadata__"
    }


def copy(source: np.ndarray, target: np.ndarray) -> None:
    """Copies an array; a few rows at a time if it is transposed, as they stay in the cache."""
    if source.dtype == target.dtype:  # as integers, since NumPy copies bfloat16 one by one
        bits = np.dtype(f"u{source.dtype.itemsize}")
        source, target = source.view(bits), target.view(bits)
    rows = max(1, len(source)) if target.flags.c_contiguous else ROWS
    for first in range(0, len(source), rows):
        target[first : first + rows] = source[first : first + rows]


class CRC32:
    """The checksum CRC-32, with the methods of `hashlib`: ten times as fast as SHA-256."""

    def __init__(self) -> None:
        self.value = 0

    def update(self, content: Any) -> None:
        self.value = zlib.crc32(content, self.value)

    def hexdigest(self) -> str:
        return f"{self.value:08x}"


Algorithm = Literal["crc32", "sha256"]
ALGORITHMS: dict[Algorithm, Callable[[], Any]] = {"crc32": CRC32, "sha256": hashlib.sha256}


class NewTensor(ABC):
    """A tensor to write.

    Attributes:
      name, shape, dtype: its name, shape and dtype in the file.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize

    @abstractmethod
    def parts(self) -> Iterator[np.ndarray]:
        """Yields the array, or some of its rows at a time.

        Each part is made just before it is written, and then released.
        """

    def checksum(
        self, algorithm: Algorithm = "crc32", write: Callable[[memoryview], None] | None = None
    ) -> str:
        """Returns the checksum of the tensor's bytes, which go to `write` as well."""
        digest = ALGORITHMS[algorithm]()
        for part in self.parts():
            content = np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
            digest.update(content)
            if write is not None:
                write(content)
        return digest.hexdigest()


def checksums_of(tensors: Sequence[NewTensor], algorithm: Algorithm) -> dict[str, str]:
    """Returns the checksum of each tensor by its name, of several tensors at a time."""
    with ThreadPoolExecutor(THREADS) as pool:
        found = pool.map(lambda tensor: tensor.checksum(algorithm), tensors)
        return {tensor.name: x for tensor, x in zip(tensors, found, strict=True)}


@dataclass(frozen=True, kw_only=True)
class WrittenFiles:
    """Files of tensors in a folder.

    Attributes:
      checksums: the CRC-32 of each tensor, by the name of its file and its own name.
    """

    folder: Path
    checksums: dict[str, dict[str, str]]


def write_tensors(
    folder: Path,
    tensors: Sequence[NewTensor],
    shard_bytes: int,
    before: WrittenFiles | None = None,
    *,
    synced: bool = True,
    threads: int = 1,
) -> WrittenFiles:
    """Writes one file, or several files and an index if the total exceeds `shard_bytes`.

    Args:
      before: older files of the same tensors. A file whose tensors have not changed becomes a hard
        link to the older one.
      synced: whether to wait until the files are on the disk.
      threads: the number of tensors that are made and written at a time.
    """
    shards: list[list[NewTensor]] = []
    room = 0
    for tensor in tensors:
        if not shards or tensor.bytes > room:
            shards.append([])
            room = shard_bytes
        shards[-1].append(tensor)
        room -= tensor.bytes
    count = len(shards)
    names = [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
    names = [SINGLE] if count == 1 else names
    with ThreadPoolExecutor(1) as disk:  # which works while the next file is made
        syncs, checksums = [], {}
        for name, shard in zip(names, shards, strict=True):
            checksums[name] = write_file(folder / name, shard, before, threads)
            syncs += [disk.submit(sync, folder / name)] if synced else []
        for done in syncs:
            done.result()
    written = WrittenFiles(folder=folder, checksums=checksums)
    if count == 1:
        return written
    weight_map = {
        tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard
    }
    index = {
        "metadata": {
            "total_parameters": sum(int(np.prod(tensor.shape)) for tensor in tensors),
            "total_size": sum(tensor.bytes for tensor in tensors),
        },
        "weight_map": dict(sorted(weight_map.items())),
    }
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    return written


def write_file(
    path: Path,
    tensors: Sequence[NewTensor],
    before: WrittenFiles | None = None,
    threads: int = 1,
) -> dict[str, str]:
    """Writes one file without a `sync`, or links it to the same file of `before`.

    Returns:
      The CRC-32 of each tensor by its name.
    """
    old = {} if before is None else before.checksums.get(path.name, {})
    same = list(old) == [tensor.name for tensor in tensors] and all(
        tensor.checksum() == old[tensor.name] for tensor in tensors
    )
    if before is not None and same and linked(before.folder / path.name, path):
        return old
    kinds = {dtype: kind for kind, dtype in DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers requires this
    end = 0
    for tensor in tensors:
        start, end = end, end + tensor.bytes
        header[tensor.name] = {
            "dtype": kinds[tensor.dtype],
            "shape": tensor.shape,
            "data_offsets": [start, end],
        }
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # aligns the data
    writes: list[Future[str]] = []
    with path.open("wb", buffering=0) as file, ThreadPoolExecutor(threads) as pool:
        start = write_at(file.fileno(), len(encoded).to_bytes(8, "little") + encoded, 0)
        for tensor in tensors:
            at = start + header[tensor.name]["data_offsets"][0]
            writes.append(pool.submit(write_tensor, file.fileno(), tensor, at))
        try:
            return {x.name: write.result() for x, write in zip(tensors, writes, strict=True)}
        except BaseException:
            pool.shutdown(cancel_futures=True)  # before the file is closed
            raise


def write_tensor(file: int, tensor: NewTensor, start: int) -> str:
    """Writes a tensor to an open file from an offset on, and returns its CRC-32."""

    def write(content: memoryview) -> None:
        nonlocal start
        start = write_at(file, content, start)

    return tensor.checksum(write=write)


def write_at(file: int, content: bytes | memoryview, start: int) -> int:
    """Writes to an open file from an offset on, and returns the offset behind it."""
    content = memoryview(content)
    while content:
        written = os.pwrite(file, content, start)
        start, content = start + written, content[written:]
    return start


def linked(file: Path, path: Path) -> bool:
    """Returns whether `path` became a hard link to the file; not every disk has hard links."""
    try:
        os.link(file, path)
    except OSError:
        return False
    return True


def sync(path: Path) -> None:
    """Waits until a file is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
