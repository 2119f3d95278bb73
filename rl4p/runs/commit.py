"""The commit of a checkout, found so that nothing in the checkout can run a program.

A repository may bring a configuration, hooks and filters that run programs, even for `git status`.
So git gets a folder of its own in place of `.git`, with a copy of the index and the same objects.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# Of the environment git gets only what finds it and the settings of this user.
ENVIRONMENT = ("PATH", "HOME", "XDG_CONFIG_HOME")
SAFE = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")


def git_state(checkout: Path) -> dict[str, Any]:
    """Returns the commit of a checkout and whether files differ from it; {} without a checkout."""
    place = checkout / ".git"
    if not place.exists():  # ignores a repository that contains the folder
        return {}
    try:
        if place.is_file():  # of a linked working tree
            place = checkout / place.read_text().removeprefix("gitdir:").strip()
        shared = place / "commondir"
        common = place / shared.read_text().strip() if shared.is_file() else place
        commit = commit_of(place, common)
        return {"git_commit": commit, "git_dirty": differs(checkout, commit, place, common)}
    except (OSError, ValueError, subprocess.CalledProcessError):
        return {}


def commit_of(place: Path, common: Path) -> str:
    """Returns the commit that HEAD names.

    Args:
      place: the folder of the working tree in the repository.
      common: the folder of the repository.

    Raises:
      OSError, ValueError: HEAD names no commit.
    """
    head = (place / "HEAD").read_text().strip()
    if head.startswith("ref: "):
        name = head.removeprefix("ref: ")
        if (common / name).is_file():
            head = (common / name).read_text().strip()
        else:
            packed = (common / "packed-refs").read_text()
            match = re.search(rf"^(\w+) {re.escape(name)}$", packed, re.MULTILINE)
            head = match[1] if match else ""
    if not re.fullmatch("[0-9a-f]{40}", head):
        raise ValueError(f"{place} names no commit")
    return head


def differs(checkout: Path, commit: str, place: Path, common: Path) -> bool:
    """Returns whether files of a checkout differ from a commit; submodules are left out.

    Raises:
      OSError, subprocess.CalledProcessError: there is no git, or it cannot read the repository.
    """
    with TemporaryDirectory() as temporary:
        own = Path(temporary)
        for name in ("objects", "refs", "info"):
            (own / name).mkdir()
        (own / "HEAD").write_text(commit + "\n")
        for folder, name in ((place, "index"), (common, "info/exclude")):
            if (folder / name).is_file():
                shutil.copy2(folder / name, own / name)  # with its time, which git compares
        environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        environment |= {
            "GIT_DIR": str(own),
            "GIT_WORK_TREE": str(checkout),
            "GIT_OBJECT_DIRECTORY": str((common / "objects").resolve()),
        }
        command = ["git", *SAFE, "status", "--short", "--ignore-submodules=all"]
        done = subprocess.run(
            command, cwd=checkout, env=environment, capture_output=True, check=True
        )
        return bool(done.stdout)
