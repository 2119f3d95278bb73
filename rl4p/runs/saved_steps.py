"""The saved steps of a run, and digests that detect a damaged one before it is used.

Orbax restores flipped bits without a word. The folder of a step therefore has a file
`digests.sha256` with the digest of each of its other files, which `sha256sum -c` reads too. It is
written before the folder gets its final name, so that each complete step has one.
"""

import hashlib
import logging
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from rl4p.base.errors import InputError
from rl4p.runs.best import best_checkpoint
from rl4p.runs.folder import DIGESTS, fetch_absent

OWN = "# SHA-256 of the lines below: "  # for a flipped bit in the file itself
Choice = int | Literal["best"] | None  # of a checkpoint: its step, the best, or the newest
LINE = re.compile(r"^([0-9a-f]{64})  (.+)$", re.MULTILINE)

log = logging.getLogger(__name__)


def write_digests(folder: Path) -> None:
    """Writes the digests of all files in the folder of a step."""
    names = sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )
    digests = digests_of(folder, names)
    lines = "".join(f"{digests[name]}  {name}\n" for name in names)
    own = hashlib.sha256(lines.encode()).hexdigest()
    (folder / DIGESTS).write_text(f"{OWN}{own}\n{lines}")


def digests_of(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Returns the SHA-256 of files in a folder, by name."""

    def of(name: str) -> str:
        with (folder / name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    with ThreadPoolExecutor() as pool:  # hashing holds no lock of Python's
        return dict(zip(names, pool.map(of, names), strict=True))


def names_in(digests: str) -> list[str]:
    """Returns the names of the files that a file of digests names."""
    return [name for _, name in LINE.findall(digests)]


def damage(step: Path) -> str | None:
    """Returns what is wrong with the folder of a step, or None; the words name the file.

    Fetches the absent files if the run is a copy of one in an object store.
    """
    if not (step / DIGESTS).exists():
        return f"it lacks {DIGESTS}"
    try:
        own, _, lines = (step / DIGESTS).read_bytes().decode().partition("\n")
        saved = {name: digest for digest, name in LINE.findall(lines)}
        if own != f"{OWN}{hashlib.sha256(lines.encode()).hexdigest()}":
            return f"its file {DIGESTS} has changed since it was saved"
    except (OSError, ValueError) as error:
        return f"its file {DIGESTS} cannot be read ({error})"
    fetch_absent(step, saved)
    what, wrong = "is missing", [name for name in saved if not (step / name).is_file()]
    if not wrong:
        try:
            digests = digests_of(step, list(saved))
        except OSError as error:
            return f"its file {error.filename} cannot be read ({error.strerror})"
        what = "has changed since it was saved"
        wrong = [name for name in saved if digests[name] != saved[name]]
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    return f"its file {wrong[0]} {what}{more}" if wrong else None


def newest_undamaged(folder: Path) -> tuple[int | None, dict[int, str]]:
    """Returns the newest step of a folder that is not damaged, and the damage of the later ones."""
    damaged: dict[int, str] = {}
    for step in reversed(steps_of(folder)):
        reason = damage(folder / str(step))
        if reason is None:
            return step, damaged
        damaged[step] = reason
    return None, damaged


def steps_of(folder: Path) -> list[int]:
    """Returns the steps that have a folder of their own, in order."""
    names = [path.name for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    return sorted(int(name) for name in names if re.fullmatch(r"0|[1-9][0-9]*", name))


def chosen_step(folder: Path, step: Choice = None) -> int:
    """Returns the newest step of a folder that is not damaged, or checks that the given one is not.

    Warns of each step that is passed over.

    Args:
      folder: the folder `checkpoints` of a run.
      step: a step, or `best` for the best of them; None for the newest.
    """
    steps = steps_of(folder)
    if not steps:
        raise InputError(f"{folder} has no finished checkpoint.")
    if step == "best":
        step = best_checkpoint(folder.parent, steps)
    if step is None:
        step, damaged = newest_undamaged(folder)
        if step is None:
            reasons = "; ".join(f"step {other}, because {damaged[other]}" for other in damaged)
            raise InputError(
                f"Each checkpoint in {folder} is damaged: {reasons}. Replace a folder by a copy, "
                "or delete what is no checkpoint."
            )
        for other, reason in damaged.items():
            log.warning(
                "%s is damaged, because %s: step %d is used.", folder / str(other), reason, step
            )
    elif step not in steps:
        raise InputError(
            f"{folder} has no checkpoint of step {step}; it has checkpoints of steps "
            f"{', '.join(map(str, steps))} (set by checkpoint.every and checkpoint.keep)."
        )
    elif (reason := damage(folder / str(step))) is not None:
        raise InputError(f"{folder / str(step)} is damaged, because {reason}.")
    return step


def set_aside(folder: Path, after: int) -> None:
    """Renames the folders of steps after `after`, so that the run can save these steps again."""
    for step in steps_of(folder):
        if step > after:
            old = folder / str(step)
            name = f"{step}.{'left' if damage(old) is None else 'damaged'}"
            names = (name, *(f"{name}-{n}" for n in range(2, 100)))
            new = next(folder / name for name in names if not (folder / name).exists())
            old.rename(new)
            log.warning("%s is now %s: delete it if it is of no use.", old, new)
