"""The folder of a run: its name on the command line, the files of Hydra in it, and its lock.

Only one run, and only its first process, uses a folder at a time.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from rl4p.base.errors import InputError
from rl4p.base.storage import is_address
from rl4p.configuration.quoting import command, override
from rl4p.configuration.run_copy import copy_for_reading
from rl4p.configuration.signature import is_own, signed
from rl4p.configuration.suggestions import write
from rl4p.configuration.yaml_file import load_yaml, read_yaml

RECORD = "metrics.jsonl"  # its presence marks the folder of a run
RUNS = Path("outputs/runs")  # the runs that got no other `hydra.run.dir`
LATEST, AUTO = "latest", "auto"  # values of resume that are no folders
JOBS = "jobs.yaml"  # its presence marks the folder of a sweep


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
    """Writes a file of `.hydra`, as Hydra does, but signed, and complete even after a kill.

    Hydra writes these files at each start, also of a run that is resumed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    replace(folder / filename, signed(filename, OmegaConf.to_yaml(config)))


def record_value(folder: Path, key: str, value: str) -> None:
    """Records a value that a run has chosen, as if its command line had given it.

    All that reads the run later then has the same value: resume, evaluate, generate and serve.
    """
    hydra = folder / ".hydra"
    config = load_yaml(hydra / "config.yaml")
    OmegaConf.update(config, key, value, force_add=True)
    lines = [x for x in read_yaml(hydra / "overrides.yaml") if x.partition("=")[0] != key]
    for name, content in (
        ("overrides.yaml", [*lines, override(key, value)]),
        ("config.yaml", config),
    ):
        text = OmegaConf.to_yaml(content)
        replace(hydra / name, signed(name, text) if is_own(hydra / name) else text)


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
    object store, it is the path of a local copy (`run_copy.py`).

    Args:
      key: the key of the command line that has the value, for error messages.

    Raises:
      InputError: there is no run under `outputs/runs`, or at the address.
      RunError: the object store cannot be read.
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
    """Refuses a folder whose `.hydra` another program, or another user's command, has written.

    Args:
      out: the value of `out=`.

    Raises:
      InputError: Hydra would write over these files.
    """
    config = Path(out).expanduser() / ".hydra" / "config.yaml"
    if config.exists() and not is_own(config):
        raise InputError(f"out={out}: {config} exists and is not yours: name another folder.")


def refuse_taken(key: str, folder: str | None, pattern: str) -> None:
    """Refuses a folder that holds a run or a sweep already, before Hydra writes into it.

    Args:
      key: the configuration key that names the folder.
      folder: the folder for the new run or sweep.
      pattern: a glob pattern of the files that mark a run.

    Raises:
      InputError: the folder holds a run, or its name is empty, which is the working directory.
    """
    if not folder:
        problem = f"{key} is empty, so the run would write into the working directory"
        raise InputError(write(problem, [f"{key}=outputs/my_run"]))
    refuse_address(key, folder, override("checkpoint.mirror", folder))
    holds = next((path.parent for path in Path(folder).glob(pattern)), None)
    if holds is not None:
        if (Path(folder) / JOBS).exists():
            holds = Path(folder)
        resume = command([override("resume", str(holds))])
        raise InputError(
            f"{key}={folder} already contains a run: continue it with {resume}, or choose another "
            "folder."
        )


def refuse_address(key: str, place: str, instead: str = "") -> None:
    """Refuses an address in an object store where a local folder or file is written.

    Args:
      key: the key of the place.
      place: its value.
      instead: the words of the command line that write there.

    Raises:
      InputError: the place is such an address.
    """
    if not is_address(place):
        return
    problem = f"{key}={place} is in an object store, and this is written to a local path"
    if instead:
        raise InputError(write(f"{problem}, which is mirrored", [instead]))
    raise InputError(f"{problem}: name one, and copy the result from there.")
