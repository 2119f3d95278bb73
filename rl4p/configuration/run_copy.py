"""Local copies of runs that are in an object store.

The store has a complete checkpoint if it has the digests of its files, which are sent last. A copy
has the files of the run and, of each complete checkpoint, the digests alone. The other files of a
checkpoint are fetched when it is chosen, and checked by these digests.
"""

import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from rl4p.base.storage import ObjectStore, cache_folder

CHECKPOINTS = "checkpoints"  # the folder of a run that holds its checkpoints
DIGESTS = "digests.sha256"
START = ".mirror"  # identifies the start that wrote a mirror last, here and in the store
UNSENT = ".unsent"  # in a run folder whose mirror lacks a part of it
OF_A_STEP = re.compile(rf"{CHECKPOINTS}/(0|[1-9][0-9]*)/(.+)")

_copies: dict[Path, ObjectStore] = {}  # of this process, so that no file says where to fetch from


def copy_for_reading(url: str) -> Path:
    """Returns a folder in the cache with the record of a run as the store has it now."""
    store = ObjectStore(url)
    scheme, _, rest = url.partition("://")
    folder = cache_folder("stores") / scheme / rest.strip("/")
    names = names_to_copy(store, exports=False)
    for path in folder.glob("*"):
        if path.is_file() and path.name not in names:
            path.unlink(missing_ok=True)
    for step in (folder / CHECKPOINTS).glob("*"):
        digests = step / DIGESTS
        before = digests.read_bytes() if digests.is_file() else None
        if before is None or store.read(f"{CHECKPOINTS}/{step.name}/{DIGESTS}") != before:
            shutil.rmtree(step, ignore_errors=True)
    store.download(names, folder)
    register(folder, store)
    return folder


def names_to_copy(store: ObjectStore, *, exports: bool) -> list[str]:
    """Returns the objects of a copy: all but the files of checkpoints that have digests.

    Args:
      exports: whether to copy other folders than `.hydra`, such as exported policies.
    """
    names = []
    for name in store.objects():
        if (part := OF_A_STEP.fullmatch(name)) is not None:
            wanted = part[2] == DIGESTS
        else:
            wanted = exports or "/" not in name or name.startswith(".hydra/")
        names += [name] * wanted
    return names


def register(folder: Path, store: ObjectStore) -> None:
    """Makes absent files of the checkpoints in a folder be fetched from a store."""
    _copies[folder.resolve()] = store


def fetch_absent(step: Path, names: Iterable[str]) -> None:
    """Fetches the absent files of a checkpoint, if its run is a copy.

    Args:
      step: the folder of the checkpoint.
      names: its files.
    """
    if (store := _copies.get(step.parents[1].resolve())) is not None:
        of_step = ObjectStore(store.address(f"{CHECKPOINTS}/{step.name}"))
        of_step.download([name for name in names if not (step / name).is_file()], step)
