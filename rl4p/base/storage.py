"""Object stores, such as S3, and the copies on this machine of what is in them.

An address such as s3://BUCKET/NAME may name what rl4p reads: a run, a model, a file of questions.
Readers get the path of a local copy, and know no other file system. Writers write local files,
which `runs/run_mirror.py` sends.

A store has no folders and no rename, but an object appears at once and complete. What several
objects form is complete when the last of them is there.

Credentials and endpoints come from the environment, as the libraries of the stores define it
(AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, GOOGLE_APPLICATION_CREDENTIALS), and never from an address.
"""

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from rl4p.base.errors import InputError, RunError

EXTRAS = {"s3": "s3", "gs": "gs", "memory": None}  # the schemes, and what installs their library
# What changes with the content of an object; each library has some of these.
VERSION = ("size", "ETag", "etag", "md5Hash", "generation", "created")
AT_A_TIME = 8  # objects


def cache_folder(name: str) -> Path:
    """Returns a folder for what can be made or fetched again, ~/.cache/rl4p/NAME by default."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rl4p" / name


def is_address(place: str) -> bool:
    """Returns whether a place is an address, such as s3://BUCKET/NAME, and not a path."""
    return re.match(r"[A-Za-z][\w+.-]*://", place) is not None


def local_copy(place: str, names: Sequence[str] = ("*",)) -> Path:
    """Returns the path of a local file or folder, or of a copy of one in an object store.

    The copy stays in the cache. When an object changes, the next call makes another copy.

    Args:
      names: patterns of the files of a folder that are needed.

    Raises:
      InputError: nothing is at the address.
      RunError: the store cannot be read.
    """
    if not is_address(place):
        return Path(place)
    store = ObjectStore(place)
    objects = store.objects()
    if not objects:
        raise InputError(f"{place} does not exist.")
    digest = hashlib.sha256(json.dumps([place, objects], sort_keys=True).encode()).hexdigest()
    folder = cache_folder("stores") / digest[:16] / place.rstrip("/").rpartition("/")[2]
    if "" in objects:  # a single file
        wanted = [""]
    else:
        wanted = [each for each in objects if any(fnmatch(each, pattern) for pattern in names)]
    store.download([each for each in wanted if not (folder / each).exists()], folder)
    return folder


@dataclass(frozen=True)
class ObjectStore:
    """The objects below an address, named like the files of a folder: `plots/curve.png`.

    Methods raise a `RunError` if the store cannot be reached, and an `InputError` for a scheme that
    is unknown or whose library is missing.
    """

    url: str

    @property
    def system(self) -> Any:
        """The file system of fsspec, which keeps its connections."""
        scheme = self.url.partition("://")[0]
        if scheme not in EXTRAS:
            known = ", ".join(f"{each}://" for each in EXTRAS)
            raise InputError(f"{self.url} is not in an object store that rl4p reads ({known}).")
        import fsspec

        logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # tracebacks of what it also raises
        try:
            return fsspec.filesystem(scheme, use_listings_cache=False)
        except ImportError as error:
            raise InputError(
                f"{self.url} needs a library: pip install 'rl4p[{EXTRAS[scheme]}]' ({error})."
            ) from None

    def address(self, name: str) -> str:
        """Returns the address of an object, if its name is that of a file below a folder.

        "" is the object at the address of the store itself.
        """
        if name and not all(part.strip(".") for part in name.split("/")):
            raise InputError(f"{self.url} has an object {name!r}, which is no name of a file.")
        return f"{self.url.rstrip('/')}/{name}".rstrip("/")

    def objects(self) -> dict[str, str]:
        """Returns the names of all objects, and a text that changes with the content of each."""
        with self.reached("read"):
            root = self.system._strip_protocol(self.url).rstrip("/")
            found = self.system.find(root, detail=True)
        return {
            path.removeprefix(root).removeprefix("/"): str([info.get(key) for key in VERSION])
            for path, info in sorted(found.items())
            if info.get("type") == "file" and not path.endswith("/")
        }

    def read(self, name: str) -> bytes | None:
        """Returns the content of an object; None if there is none."""
        with self.reached("read"):
            try:
                return self.system.cat_file(self.address(name))
            except FileNotFoundError:
                return None

    def download(self, names: Iterable[str], folder: Path) -> None:
        """Writes objects into files of a folder; each file appears when it is complete.

        An object that does not exist any more is left out.
        """

        def download(name: str) -> None:
            address, path = self.address(name), folder / name
            new = path.with_name(f".{path.name}.{os.getpid()}")
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self.system.get_file(address, str(new))
                new.replace(path)
            except FileNotFoundError:
                return
            finally:
                new.unlink(missing_ok=True)

        with self.reached("read"), ThreadPoolExecutor(AT_A_TIME) as pool:
            list(pool.map(download, names))

    def write(self, name: str, content: bytes) -> None:
        with self.reached("written"):
            self.system.pipe_file(self.address(name), content)

    def upload(self, names: Iterable[str], folder: Path) -> None:
        """Writes objects from the files of a folder, which must not change meanwhile."""
        with self.reached("written"), ThreadPoolExecutor(AT_A_TIME) as pool:
            pairs = [(str(folder / name), self.address(name)) for name in names]
            list(pool.map(lambda pair: self.system.put_file(*pair), pairs))

    def delete(self, names: Iterable[str]) -> None:
        with self.reached("written"):
            for name in names:
                try:
                    self.system.rm_file(self.address(name))
                except FileNotFoundError:
                    continue

    @contextmanager
    def reached(self, how: str) -> Iterator[None]:
        """Turns the errors of a store into one sentence of a `RunError`."""
        try:
            yield
        except (InputError, RunError):
            raise
        except Exception as error:  # the libraries of the stores have no common class
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300].rstrip(".: ")
            raise RunError(f"{self.url} cannot be {how}: {reason}.") from error
