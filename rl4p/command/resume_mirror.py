"""Resuming from the mirror of a run in an object store: its local folder, before Hydra starts.

    resume=ADDRESS                           goes on with the run of the mirror
    resume=auto checkpoint.mirror=ADDRESS    starts it if the mirror has none

Both use the folder that `hydra.run.dir` names, or one below `outputs/mirrors`. If the start that
wrote the mirror last wrote this folder too, the folder is used as it is, because it has all that
the mirror has. Otherwise the folder becomes a copy of the mirror.
"""

import logging
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from rl4p.base.errors import InputError
from rl4p.base.storage import ObjectStore, is_address
from rl4p.configuration.quoting import override
from rl4p.runs.folder import AUTO, RECORD, START, is_in_use, names_to_copy, not_a_run, register

MIRRORS = Path("outputs/mirrors")
KEYS = ("resume", "checkpoint.mirror", "hydra.run.dir")

log = logging.getLogger(__name__)


def with_local_folder(words: Sequence[str]) -> list[str]:
    """Returns the words of a command line, with a local folder for a run that a mirror has.

    Raises:
      InputError: there is no run at the address.
      RunError: the store cannot be read.
    """
    given = values(words)
    resume, mirror, folder = (given.get(key) for key in KEYS)
    automatic = resume == AUTO and mirror is not None
    if not automatic and not is_address(resume or ""):
        return list(words)
    url = str(mirror if automatic else resume)
    if mirror is not None and mirror != url:
        raise InputError(
            f"checkpoint.mirror={mirror} is not the mirror that resume={url} continues: leave it "
            "out."
        )
    scheme, _, rest = url.partition("://")
    path = (Path(folder) if folder else MIRRORS / scheme / rest.strip("/")).expanduser().absolute()
    in_store = update(ObjectStore(url), path)
    kept = [word for word in words if word.partition("=")[0] not in KEYS]
    mirrored = override("checkpoint.mirror", url)
    if automatic:
        return [*kept, f"resume={AUTO}", mirrored, override("hydra.run.dir", str(path))]
    if not in_store:
        raise not_a_run(url, f"it has no {RECORD}", key="resume")
    return [*kept, override("resume", str(path)), mirrored]


def values(words: Sequence[str]) -> dict[str, Any]:
    """Returns the values of `KEYS` that are texts; what cannot be read is refused later."""
    given = {}
    for word in words:
        if word.partition("=")[0] in KEYS:
            with suppress(HydraException):
                value = OverridesParser.create().parse_override(word).value()
                given |= {word.partition("=")[0]: value} if isinstance(value, str) else {}
    return given


def update(store: ObjectStore, folder: Path) -> bool:
    """Makes a folder the copy of a run in a store, unless it is; returns whether there is a run.

    A folder of another start is renamed, because it may have steps that the store lacks.
    """
    if RECORD not in (names := names_to_copy(store, exports=True)):
        return False
    start = store.read(START)
    register(folder, store)
    if start_of(folder) == start:
        return True
    if is_in_use(folder):
        raise InputError(f"Another run is using {folder}.")
    if folder.exists() and any(folder.iterdir()) and not (folder / ".hydra").exists():
        raise InputError(f"hydra.run.dir={folder} has files that are no run: name another folder.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        new = Path(temporary) / folder.name
        store.download(names, new)
        if folder.exists() and any(folder.iterdir()):
            others = (folder.with_name(f"{folder.name}.{n}") for n in range(1, 1000))
            old = next(other for other in others if not other.exists())
            folder.rename(old)
            reason = f"{store.url} has a later state of the run"
            log.warning("%s is now %s, because %s.", folder, old, reason)
        try:
            new.rename(folder)
        except OSError:  # another process of this run was first
            if start_of(folder) != start:
                raise
    return True


def start_of(folder: Path) -> bytes | None:
    """Returns what identifies the start that wrote a folder last."""
    return (folder / START).read_bytes() if (folder / START).exists() else None
