"""The folder of a run: its name, what lies where in it, its lock, and its copies.

Only one run, and only its first process, uses a folder at a time.
"""

import fcntl
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from yaml import YAMLError

from rl4p.base.errors import InputError, RunError
from rl4p.base.storage import ObjectStore, cache_folder, is_address
from rl4p.configuration.capability import refuse_of_file, uses
from rl4p.configuration.override_errors import JOBS, LATEST, RECORD
from rl4p.configuration.quoting import override
from rl4p.configuration.suggestions import write
from rl4p.configuration.targets import resolved
from rl4p.configuration.trust import TRUSTED, check_names, check_trust, names_in, unsandboxed
from rl4p.configuration.yaml_file import is_own, load_yaml, read_yaml, signed

RUNS = Path("outputs/runs")  # the runs that got no other `hydra.run.dir`
AUTO = "auto"  # a value of resume that is no folder
CHECKPOINTS = "checkpoints"  # the folder of a run that holds its checkpoints
DIGESTS = "digests.sha256"
START = ".mirror"  # identifies the start that wrote a mirror last, here and in the store
UNSENT = ".unsent"  # in a run folder whose mirror lacks a part of it
OF_A_STEP = re.compile(rf"{CHECKPOINTS}/(0|[1-9][0-9]*)/(.+)")

_copies: dict[Path, ObjectStore] = {}  # of this process, so that no file says where to fetch from


def replace(path: Path, content: str | bytes) -> None:
    """Writes a file atomically: readers see either the old or the new content, complete."""
    new = path.with_name(path.name + ".new")
    try:
        new.write_bytes(content.encode() if isinstance(content, str) else content)
        new.replace(path)
    except OSError:
        with suppress(OSError):
            new.unlink(missing_ok=True)  # its room may be needed
        raise


def save_config(config: DictConfig, filename: str, folder: Path) -> None:
    """Writes a file of `.hydra`, as Hydra does, but signed, and complete even after a kill."""
    folder.mkdir(parents=True, exist_ok=True)
    replace(folder / filename, signed(filename, OmegaConf.to_yaml(config)))


def record_value(folder: Path, key: str, value: str | int) -> None:
    """Records a value that a run has chosen, as if its command line had given it."""
    hydra = folder / ".hydra"
    config = load_yaml(hydra / "config.yaml")
    OmegaConf.update(config, key, value, force_add=True)
    lines = [x for x in read_yaml(hydra / "overrides.yaml") if x.partition("=")[0] != key]
    word = override(key, value) if isinstance(value, str) else f"{key}={value}"
    overrides = [*lines, word]
    for name, content in (("overrides.yaml", overrides), ("config.yaml", config)):
        text = OmegaConf.to_yaml(content)
        replace(hydra / name, signed(name, text) if is_own(hydra / name) else text)


def saved_config(
    folder: Path,
    keys: Sequence[str],
    trusted_targets: Sequence[str] | str,
    allow: Sequence[str] | str,
) -> DictConfig:
    """Returns the configuration that a run was started with.

    Args:
      keys: the keys of the root that are used, and must be present.
      trusted_targets: the packages that it may name; the list in the folder itself is ignored.
      allow: the capabilities that it may have, if this user's own commands did not write it.
    """
    path = folder / ".hydra" / "config.yaml"
    try:
        config = load_yaml(path)
    except (OSError, ValueError, YAMLError):
        config = None
    if not isinstance(config, DictConfig) or not set(keys) <= set(config):
        raise not_a_run(str(folder), ".hydra/config.yaml is absent or broken")
    check_names(names := names_in(trusted_targets))
    config.trusted_targets = list(names)
    used = resolved(OmegaConf.masked_copy(config, list(keys)))
    check_trust(used, trusted := (*TRUSTED, *config.trusted_targets))
    refuse_of_file(path, list(uses(used, trusted)), names_in(allow))
    return config


@contextmanager
def only_run_in(folder: Path, *, lock: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Refuses a second run in the folder. The lock ends with the process, however it ends.

    Args:
      lock: fcntl.LOCK_SH only tests for a run; several processes may hold it together.
    """
    with (folder / ".lock").open("a") as file:
        try:
            fcntl.flock(file, lock | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"Another run is using {folder}.") from None
        yield


def run_folder(given: str, *, key: str = "run") -> Path:
    """Returns the absolute path of the run that a value names: a folder, or the latest run.

    The latest run is the one that was started or resumed last under `outputs/runs`. Of a run in an
    object store, it is the path of a local copy.
    """
    if is_address(given):
        folder = copy_for_reading(given)
        if not (folder / RECORD).is_file():
            raise not_a_run(given, f"it has no {RECORD}", key=key)
        return folder.resolve()
    if given != LATEST:
        folder = Path(given).expanduser().resolve()
        if (folder / JOBS).is_file():
            job = next((x.parent for x in sorted(folder.glob(f"*/{RECORD}"))), folder / "0")
            problem = f"{key}={given} is a sweep, which has several runs; choose one of them"
            raise InputError(write(problem, [override(key, str(Path(given) / job.name))]))
        return folder
    if not (runs := newest_runs()):
        raise InputError(f"{key}={LATEST}: there is no run under {RUNS.resolve()}.")
    return runs[0].resolve()


def newest_runs() -> list[Path]:
    """Returns the runs under `outputs/runs`, the one that was started or resumed last first."""
    starts = [*RUNS.glob("*/.hydra/config.yaml"), *RUNS.glob("*/*/.hydra/config.yaml")]
    runs = [start for start in starts if (start.parents[1] / RECORD).exists()]
    runs.sort(key=lambda start: start.stat().st_mtime_ns, reverse=True)
    return [start.parents[1] for start in runs]


def not_a_run(given: str, reason: str, *, key: str = "run") -> InputError:
    """Returns the error for a value of `run` or `resume` that is not the folder of a run."""
    problem = f"{key}={given} is not the folder of a run: {reason}"
    if given.lower() in ("true", "yes", "auto", "last", "newest", "1"):
        return InputError(write(f"{key}={given} is not a folder", [f"{key}={LATEST}"]))
    above = (folder for folder in Path(given).expanduser().parents if (folder / RECORD).is_file())
    if (holds := next(above, None)) is not None:
        return InputError(write(problem, [override(key, str(holds))]))
    return InputError(f"{problem}.")


def is_in_use(folder: Path) -> bool:
    """Returns whether a run is using the folder."""
    if not (folder / ".lock").exists():
        return False
    try:
        with only_run_in(folder, lock=fcntl.LOCK_SH):
            return False
    except InputError:
        return True


def refuse_hydra_of_others(out: str) -> None:
    """Refuses an `out=` whose `.hydra` others have written, since Hydra would write over it."""
    config = Path(out).expanduser() / ".hydra" / "config.yaml"
    if config.exists() and not is_own(config):
        raise InputError(f"out={out}: {config} exists and is not yours: name another folder.")


def refuse_taken(key: str, folder: str | None, pattern: str) -> None:
    """Refuses a folder that holds a run or a sweep already, before Hydra writes into it.

    Args:
      pattern: a glob pattern of the files that mark a run.
    """
    if not folder:
        problem = f"{key} is empty, so the run would write into the working directory"
        raise InputError(write(problem, [f"{key}=outputs/my_run"]))
    refuse_address(key, folder, override("checkpoint.mirror", folder))
    holds = next((path.parent for path in Path(folder).glob(pattern)), None)
    if holds is not None:
        if (Path(folder) / JOBS).exists():
            holds = Path(folder)
        resume = shlex.quote(override("resume", str(holds)))
        raise InputError(
            f"{key}={folder} already contains a run: continue it with {resume}, or choose another "
            "folder."
        )


def resume_command(
    folder: Path, config: Mapping[str, Any], sources: Iterable[Any], words: Sequence[str] = ()
) -> str:
    """Returns the command that resumes a run or a sweep, which can be pasted into a shell.

    Args:
      config: its resolved configuration. The command repeats what no folder can give: trust.
      sources: Hydra's sources of the configuration, of which the command names --config-dir.
    """
    command = ["python", "-m", "rl4p.train", override("resume", str(folder))]
    for source in sources:
        if source.provider == "command-line":
            command += ["--config-dir", source.path]
    if trusted := names_in(config["trusted_targets"]):
        command.append(f"trusted_targets=[{','.join(trusted)}]")
    command += [f"{key}=none" for key in unsandboxed(config)]
    return shlex.join([*command, *words])


def run_on_cpu(program: str, words: Iterable[str], trusted: Sequence[str] | str | None) -> None:
    """Runs a program of rl4p on a run in another process, which leaves the devices alone.

    Raises:
      RunError: it failed; the message is the last line that it printed.
    """
    if names := names_in(trusted):
        words = [*words, f"trusted_targets=[{','.join(names)}]"]
    done = subprocess.run(
        [sys.executable, "-m", f"rl4p.{program}", *words],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it printed no reason"]
        raise RunError(lines[-1])


def refuse_address(key: str, place: str, instead: str = "") -> None:
    """Refuses an address where a local path is written; `instead` are words that write there."""
    if not is_address(place):
        return
    problem = f"{key}={place} is in an object store, and this is written to a local path"
    if instead:
        raise InputError(write(f"{problem}, which is mirrored", [instead]))
    raise InputError(f"{problem}: name one, and copy the result from there.")


# Local copies of runs in an object store. The store has a complete checkpoint if it has the digests
# of its files, which are sent last. A copy has the files of the run and, of each complete
# checkpoint, the digests alone. The other files are fetched when it is chosen, and checked.


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

    Without `exports` it is also without other folders than `.hydra`, such as exported policies.
    """
    names = []
    for name in store.objects():
        if (part := OF_A_STEP.fullmatch(name)) is not None:
            wanted = part[2] == DIGESTS
        else:
            wanted = exports or "/" not in name or name.startswith(".hydra/")
        if wanted:
            names.append(name)
    return names


def register(folder: Path, store: ObjectStore) -> None:
    """Makes absent files of the checkpoints in a folder be fetched from a store."""
    _copies[folder.resolve()] = store


def fetch_absent(step: Path, names: Iterable[str]) -> None:
    """Fetches the absent files of the folder of a checkpoint, if its run is a copy."""
    if (store := _copies.get(step.parents[1].resolve())) is not None:
        of_step = ObjectStore(store.address(f"{CHECKPOINTS}/{step.name}"))
        of_step.download([name for name in names if not (step / name).is_file()], step)
