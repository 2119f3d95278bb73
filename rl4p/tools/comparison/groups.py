"""The groups of runs whose configurations differ only in the seed.

A group is named by the settings in which it differs from others, as one would write them on the
command line: `advantage=rloo group_size=16`. An option that changes many keys is one setting.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rl4p.configuration.tree import leaves
from rl4p.tools.runs import LeftOut, Run

# Settings that tell when, where or how a run is watched, and not what is learned.
IGNORED = (
    "seed",
    "resume",
    "trusted_targets",
    "allow",
    "trust",
    "tracker",
    "checkpoint",
    "samples",
    "debug",
)
IGNORED += ("plan", "sweep", "hydra", "mesh.coordinator", "mesh.processes", "mesh.process")
IGNORED += ("mesh.initialization_timeout", "mesh.heartbeat_timeout")
ABSENT = "\N{EM DASH}"

Settings = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class RunGroup:
    """Runs of one configuration, each with another seed."""

    overrides: tuple[str, ...]  # the settings that distinguish the group, as `key=value`
    settings: Settings  # every setting in which any two runs of the comparison differ
    runs: tuple[Run, ...]  # the runs in the order of their seeds

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
    naming = explaining(differing, settings, runs)
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
    keys = options | {key: _text(value) for key, value in leaves(config, lists=False)}
    learning = [row for row in run.changes if row.get("key") == "optimizer.learning_rate"]
    if learning:  # a run of one learning rate throughout is another one
        keys["changed"] = "; ".join(map(changed, learning))
    return {name: value for name, value in keys.items() if name not in IGNORED}


def changed(row: Mapping[str, Any]) -> str:
    """Returns a change of a resumed run in words."""
    before, after = _text(row.get("before")), _text(row.get("after"))
    return f"{row.get('key')} from {before} to {after} at step {row['step']}"


def explaining(
    differing: Sequence[str], settings: Sequence[Settings], runs: Sequence[Run]
) -> list[str]:
    """Returns a few of the differing names whose values determine the values of all others.

    The names in the overrides of the runs come first: those that the user wrote.
    """
    given = [override.partition("=")[0] for run in runs for override in run.overrides]
    first = dict.fromkeys(name.lstrip("+~").rpartition("@")[2] for name in given)
    chosen = [name for name in first if name in differing]
    for name in differing:
        classes: dict[tuple[str | None, ...], set[str | None]] = {}
        for each in settings:
            key = tuple(each.get(other) for other in chosen)
            classes.setdefault(key, set()).add(each.get(name))
        if any(len(values) > 1 for values in classes.values()):
            chosen.append(name)
    return chosen


def _text(value: Any) -> str:
    """Returns a value as one writes it on the command line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_text, value))}]"
    return str(value)
