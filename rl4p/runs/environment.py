"""The environment of a run: the commit of the checkout, packages, devices and data sets.

Nothing in the checkout can run a program. A repository may bring a configuration, hooks and filters
that run programs, even for `git status`. So git gets a folder of its own in place of `.git`, with a
copy of the index and the same objects.

The data sets are taken from the prompts that the run uses, so that nothing is listed that it does
not use, and a digest changes with the rows, wherever they come from.
"""

import importlib.metadata
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax

import rl4p
from rl4p.base.types import Prompt, Question
from rl4p.distributed.mesh import Mesh
from rl4p.loop.source import digest_of
from rl4p.runs.record import EVALUATION

# Of the environment git gets only what finds it and the settings of this user.
ENVIRONMENT = ("PATH", "HOME", "XDG_CONFIG_HOME")
SAFE = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "transformers", "numpy")


def surroundings(mesh: Mesh) -> dict[str, Any]:
    """Returns the commit, the versions of packages, and the devices of a mesh."""
    devices = mesh.devices.devices.flatten()
    return {
        **git_state(Path(__file__).parents[2]),
        "device": devices[0].device_kind,
        "devices": len(devices),
        "processes": jax.process_count(),
        "packages": {"rl4p": rl4p.__version__}
        | {name: importlib.metadata.version(name) for name in PACKAGES},
    }


def git_state(checkout: Path) -> dict[str, Any]:
    """Returns the commit of a checkout and whether files differ from it; {} without a commit."""
    place = checkout / ".git"
    if not place.exists():  # ignores a repository that contains the folder
        return {}
    try:
        if place.is_file():  # of a linked working tree
            place = checkout / place.read_text().removeprefix("gitdir:").strip()
        shared = place / "commondir"
        common = place / shared.read_text().strip() if shared.is_file() else place
        commit = (place / "HEAD").read_text().strip()
        if commit.startswith("ref: "):
            name = commit.removeprefix("ref: ")
            if (common / name).is_file():
                commit = (common / name).read_text().strip()
            else:
                packed = (common / "packed-refs").read_text()
                match = re.search(rf"^(\w+) {re.escape(name)}$", packed, re.MULTILINE)
                commit = match[1] if match else ""
        if not re.fullmatch("[0-9a-f]{40}", commit):
            return {}
        return {"git_commit": commit, "git_dirty": differs(checkout, commit, place, common)}
    except (OSError, ValueError, subprocess.CalledProcessError):
        return {}


def differs(checkout: Path, commit: str, place: Path, common: Path) -> bool:
    """Returns whether files of a checkout differ from a commit; submodules are left out.

    Args:
      place: the folder of the working tree in the repository, whose own folder is `common`.
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


def data_sets(
    config: Mapping[str, Any], context: str, prompts: Sequence[Prompt]
) -> list[dict[str, Any]]:
    """Returns the data set of each task among some prompts.

    Each is a mapping of JSON values: its `name`; its `key` in the configuration; the `context`; the
    `uri` of its file, or None if the questions are generated; the number of different `rows`; and
    a `digest` of them, which depends neither on the model nor on the place of the file.

    Args:
      context: TRAINING or EVALUATION, for which the prompts are.
    """
    different = {id(prompt): prompt for prompt in prompts}  # a mixture repeats prompts
    by_task: dict[str, list[Prompt]] = {}
    for prompt in different.values():
        by_task.setdefault(prompt.task, []).append(prompt)
    data_sets, names = [], [each.name for each in fields(Question)]
    tasks = (config.get("evaluation") or {}).get("tasks") or {}
    for task, rows in by_task.items():
        # Where the data set is configured. An id begins with the names of its sets in mixtures.
        key, node, first = "data", config.get("data") or {}, rows[0].id
        if context == EVALUATION and task in tasks:
            key, node = f"evaluation.tasks.{task}", tasks[task]
        while sets := node.get("sets"):
            part, _, first = first.partition("/")
            key, node = f"{key}.sets.{part}", sets[part]

        own = node.get("held_out_path") if context == EVALUATION else None
        path = own or node.get("path")
        name = task if path is None else Path(path).name
        if node.get("task_key"):
            name += f", {task}"
        if context == EVALUATION and not own:
            name += " (held out)"
        if path is not None and Path(path).exists():
            path = str(Path(path).absolute())

        # Without tokens, which depend on the model.
        questions = [Question(**{each: getattr(row, each) for each in names}) for row in rows]
        place = {"name": name, "key": key, "uri": path, "context": context}
        data_sets.append(place | {"rows": len(rows), "digest": digest_of(questions)[:8]})
    return data_sets
