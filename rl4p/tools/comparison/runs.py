"""The runs to compare, read from their folders, and their groups.

A run that has not finished, or whose files cannot be read, is left out with the reason. Runs whose
configurations differ only in the seed are a group. It is named by the settings in which it differs
from others, as one would write them on the command line: `advantage=rloo group_size=16`. An option
that changes many keys is one setting.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl4p.base.errors import InputError
from rl4p.configuration.yaml_file import read_mapping
from rl4p.runs.record import EVALUATION, Record
from rl4p.runs.sample import Sample, recorded_samples

MARKS = (".hydra", "config.yaml", "metrics.jsonl")  # a folder with one of these is a run
DEEPEST = 4  # folders between a given folder and its runs
# What readers raise for files that no run wrote.
WRONG_FILE = (InputError, OSError, ValueError, TypeError, AttributeError)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run.

    Attributes:
      name: the folder of the run, or its name and id in MLflow.
      seed: the seed of the run; runs of equal seeds are paired.
      config: the resolved configuration.
      choices: the option of each configuration group, as far as it is known.
      overrides: the overrides on the command line.
      rows: the metrics of each step, with the key "step".
      samples: the samples in samples.jsonl.
      changes: what resuming changed, as `changes.jsonl` has it.
      devices: the number of devices that the run used.
    """

    name: str
    seed: int
    config: Mapping[str, Any]
    choices: Mapping[str, str] = field(default_factory=dict)
    overrides: Sequence[str] = ()
    rows: Sequence[Mapping[str, float]]
    samples: Sequence[Sample] = ()
    changes: Sequence[Mapping[str, Any]] = ()
    devices: int = 1


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A run that is not compared.

    Attributes:
      name: as in `Run`.
      reason: a clause such as "it failed at step 3".
    """

    name: str
    reason: str


class Unusable(Exception):
    """The reason why a run cannot be compared."""


def read_folders(folders: Iterable[Path]) -> tuple[list[Run], list[LeftOut]]:
    """Returns the finished runs below the folders, and the other ones.

    Args:
      folders: folders of runs, of sweeps, or of several sweeps; patterns such as outputs/runs/*.

    Raises:
      InputError: a folder does not exist or has no run.
    """
    runs, left_out = [], []
    for folder in dict.fromkeys(run for given in folders for run in find(given)):
        try:
            runs.append(read(folder))
        except Unusable as reason:
            left_out.append(LeftOut(name=str(folder), reason=str(reason)))
    return runs, left_out


def find(folder: Path) -> list[Path]:
    """Returns the folders of all runs in `folder`, which may be a run itself.

    Raises:
      InputError: it has none.
    """
    folder = folder.expanduser()
    pattern = str(folder.relative_to(folder.anchor))
    matches = [folder] if folder.exists() else list(Path(folder.anchor).glob(pattern))
    if not matches:
        raise InputError(f"{folder} does not exist: give the folder of a sweep or of a run.")
    runs = [run for match in sorted(matches) for run in sorted(_below(match), key=_by_number)]
    if not runs:
        raise InputError(
            f"{folder} has no run: the folder of a run has a config.yaml and a metrics.jsonl."
        )
    return runs


def read(folder: Path) -> Run:
    """Returns the run in a folder.

    Raises:
      Unusable: it is an evaluation or did not finish, or one of its files cannot be read.
    """
    record = Record(folder)
    if not (folder / "config.yaml").is_file():
        raise Unusable("it ended before its first step" + _last_error(folder))
    try:
        config = _yaml(folder / "config.yaml")
        environment = _json(folder / "environment.json")
        check_training(environment.get("kind"))
        hydra = _yaml(folder / ".hydra" / "hydra.yaml").get("hydra") or {}
        summary, rows = record.summary(), record.metrics()
        check_finished(summary and summary.get("status"), rows, _last_error(folder))
        return Run(
            name=str(folder),
            seed=int(config.get("seed", 0)),
            config=config,
            choices=(hydra.get("runtime") or {}).get("choices") or {},
            overrides=environment.get("overrides") or (),
            rows=rows,
            samples=recorded_samples(record.samples_file),
            changes=record.changes(),
            devices=int(environment.get("devices") or 1),
        )
    except WRONG_FILE as error:
        raise unreadable(error) from error


def unreadable(error: Exception) -> Unusable:
    """Returns the reason for a run whose files cannot be read."""
    return Unusable(f"its files cannot be read ({' '.join(str(error).split())[:200]})")


def check_training(kind: str | None) -> None:
    """Refuses an evaluation, whose one step is no training.

    Args:
      kind: "kind" in environment.json, or the tag in MLflow.

    Raises:
      Unusable: the run is an evaluation.
    """
    if kind == EVALUATION:
        raise Unusable("it is an evaluation, and no training run")


def check_finished(status: Any, rows: Sequence[Mapping[str, float]], error: str = "") -> None:
    """Refuses a run that did not finish.

    Raises:
      Unusable: its status is not "finished", or it has no metrics.
    """
    step = int(rows[-1]["step"]) if rows else 0
    if status is None:
        raise Unusable(f"it is still running or was killed, at step {step}")
    if status != "finished":
        raise Unusable(f"it {'was ' * (status == 'stopped')}{status} at step {step}{error}")
    if not rows:
        raise Unusable("it has no metrics")


def _below(folder: Path) -> Iterator[Path]:
    for place, names, files in os.walk(folder):
        if set(MARKS) & {*names, *files}:
            names.clear()  # a run has no runs in it
            yield Path(place)
        elif len(Path(place).relative_to(folder).parts) >= DEEPEST:
            names.clear()


def _by_number(folder: Path) -> list[tuple[int, str]]:
    """Sorts job 10 of a sweep after job 9."""
    return [(int(part) if part.isdecimal() else -1, part) for part in folder.parts]


def _yaml(path: Path) -> dict[str, Any]:
    return read_mapping(path) if path.is_file() else {}


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}


def _last_error(folder: Path) -> str:
    """Returns the last line of the job's log, which is the error that ended it, in parentheses."""
    for log in folder.glob("*.log"):
        lines = log.read_text(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        if last:
            return f" ({last[:200]})"
    return ""


# Settings that tell when, where or how a run is watched, and not what is learned.
IGNORED = (
    "seed",
    "resume",
    "trusted_targets",
    "allow",
    "tracker",
    "checkpoint",
    "samples",
    "debug",
    "plan",
    "sweep",
    "hydra",
    "mesh.coordinator",
    "mesh.processes",
    "mesh.process",
    "mesh.initialization_timeout",
    "mesh.heartbeat_timeout",
)
ABSENT = "\N{EM DASH}"

Settings = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class RunGroup:
    """Runs of one configuration, each with another seed.

    Attributes:
      overrides: the settings that distinguish the group, as `key=value`.
      settings: every setting in which any two runs of the comparison differ.
      runs: the runs in the order of their seeds.
    """

    overrides: tuple[str, ...]
    settings: Settings
    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        return " ".join(self.overrides) or "the same configuration"

    @property
    def label(self) -> str:
        """The values alone, for a place without room."""
        return " ".join(override.partition("=")[2] for override in self.overrides) or "runs"


def grouped(runs: Sequence[Run]) -> tuple[list[RunGroup], list[LeftOut]]:
    """Returns the groups in the order of their first runs, and the runs that repeat a seed.

    A later run with the seed and the configuration of an earlier one replaces it: two equal runs
    are no two independent values.
    """
    settings = [settings_of(run) for run in runs]
    names = list(dict.fromkeys(name for each in settings for name in each))
    differing = [name for name in names if len({each.get(name) for each in settings}) > 1]
    naming = explaining(differing, settings, typed(runs))
    members: dict[tuple[str | None, ...], dict[int, int]] = {}
    left_out = []
    for index, run in enumerate(runs):
        seeds = members.setdefault(tuple(settings[index].get(name) for name in naming), {})
        if run.seed in seeds:
            earlier = runs[seeds[run.seed]]
            reason = f"it has the seed and the configuration of {run.name}, which is newer"
            left_out.append(LeftOut(name=earlier.name, reason=reason))
        seeds[run.seed] = index
    groups = [
        RunGroup(
            overrides=tuple(
                f"{name}={value}"
                for name, value in zip(naming, key, strict=True)
                if value is not None
            ),
            settings={name: settings[min(seeds.values())].get(name, ABSENT) for name in differing},
            runs=tuple(runs[seeds[seed]] for seed in sorted(seeds)),
        )
        for key, seeds in members.items()
    ]
    return groups, left_out


def settings_of(run: Run) -> dict[str, str]:
    """Returns every setting of a run as text: the options of the groups, and then all keys.

    Without a known option, a group has the name of the module of its `_target_`.
    """
    config = {key: value for key, value in run.config.items() if key not in IGNORED}
    options = {
        key: str(value["_target_"]).rpartition(".")[0].rpartition(".")[2]
        for key, value in config.items()
        if isinstance(value, Mapping) and value.get("_target_")
    }
    options |= {
        key.rpartition("@")[2]: value if isinstance(value, str) else _text(value)
        for key, value in run.choices.items()
        if key.partition("/")[0] not in IGNORED
    }
    keys = options | dict(_flat("", config))
    learning = [row for row in run.changes if row.get("key") == "optimizer.learning_rate"]
    if learning:  # a run of one learning rate throughout is another one
        keys["changed"] = "; ".join(map(changed, learning))
    return {name: value for name, value in keys.items() if name not in IGNORED}


def changed(row: Mapping[str, Any]) -> str:
    """Returns a change of a resumed run in words."""
    before, after = _text(row.get("before")), _text(row.get("after"))
    return f"{row.get('key')} from {before} to {after} at step {row['step']}"


def typed(runs: Sequence[Run]) -> list[str]:
    """Returns the names that occur in the overrides of the runs, in their order."""
    given = [override.partition("=")[0] for run in runs for override in run.overrides]
    return list(dict.fromkeys(name.lstrip("+~").rpartition("@")[2] for name in given))


def explaining(
    differing: Sequence[str], settings: Sequence[Settings], first: Sequence[str]
) -> list[str]:
    """Returns a few of the differing names whose values determine the values of all others.

    Args:
      differing: the names, options before keys.
      settings: the settings of each run.
      first: the names to prefer: those that the user wrote.
    """
    chosen = [name for name in first if name in differing]
    for name in differing:
        classes: dict[tuple[str | None, ...], set[str | None]] = {}
        for each in settings:
            key = tuple(each.get(other) for other in chosen)
            classes.setdefault(key, set()).add(each.get(name))
        if any(len(values) > 1 for values in classes.values()):
            chosen.append(name)
    return chosen


def _flat(prefix: str, value: Any) -> Any:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else str(key), inner)
    else:
        yield prefix, _text(value)


def _text(value: Any) -> str:
    """Returns a value as one writes it on the command line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_text, value))}]"
    return str(value)
