"""What trackers show of a run beside its metrics: name, parameters and data sets, from its folder.

Trackers read the folder, not the objects of the run, so that `rl4p.send` shows the same later.
"""

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from rl4p.configuration.yaml_file import read_mapping, read_yaml
from rl4p.runs.record import EVALUATION

# Keys that do not change the result of a run. They are neither in its name nor in its parameters.
HOUSEKEEPING = ("hydra", "tracker", "checkpoint", "samples", "debug", "plan", "resume")
HOUSEKEEPING += ("trusted_targets", "allow")

# The parameters of every run. With the overrides they are about 20: MLflow compares more slowly.
ROOT_KEYS = ("seed", "steps", "prompts_per_step", "group_size")
ROOT_KEYS += ("max_prompt_tokens", "max_response_tokens")
GROUPS = ("rollout", "reward", "advantage", "update", "model", "data", "optimizer")
OPTIONS = ("model.path", "data.path", "optimizer.learning_rate")

LONGEST_NAME = 120


@dataclass(frozen=True, kw_only=True)
class LoggedDataSet:
    """A data set that a run reads (`runs.environment.data_sets`)."""

    name: str
    key: str
    digest: str
    context: str
    uri: str | None
    rows: int


@dataclass(frozen=True)
class Description:
    """The description of the run in `folder`, after `Record.describe` was called."""

    folder: Path

    @cached_property
    def config(self) -> dict[str, Any]:
        return read_mapping(self.folder / "config.yaml")

    @cached_property
    def environment(self) -> dict[str, Any]:
        return json.loads((self.folder / "environment.json").read_text("utf-8"))

    @cached_property
    def overrides(self) -> list[str]:
        path = self.folder / ".hydra" / "overrides.yaml"
        return (read_yaml(path) or []) if path.exists() else []

    @property
    def command(self) -> str:
        """The command line; an evaluation records its own."""
        own = self.environment.get("command")
        return own or shlex.join(["python", "-m", "rl4p.train", *self.overrides])

    @property
    def is_evaluation(self) -> bool:
        """Whether the folder belongs to an evaluation, which trains nothing."""
        return self.environment.get("kind") == EVALUATION

    @property
    def started(self) -> float:
        """The time in seconds at which the record was begun, or at which the run was resumed."""
        return (self.folder / "config.yaml").stat().st_mtime

    @cached_property
    def name(self) -> str:
        """What differs in its sweep ("advantage=rloo seed=2"), or the overrides of a single run.

        A run without overrides has the names of its model and task, and its date.
        """
        values, keys = keys_and_values(self.overrides), []
        if self._sweep_file is not None:
            hydra = read_mapping(self._sweep_file).get("hydra") or {}
            task = (hydra.get("overrides") or {}).get("task") or []
            keys = list(swept(task, (hydra.get("sweeper") or {}).get("params") or {}))
        shown = {key: values[key] for key in keys if key in values} or values
        if shown:
            words = []
            for key, value in shown.items():
                is_path = value.startswith(("/", "./", "../", "~"))
                words.append(f"{key}={Path(value).name if is_path else value}")
            return short(words)
        names = ["evaluation"] if self.is_evaluation else []
        names += [self._choices["model"], self.options("data").get("task") or self._choices["data"]]
        date = datetime.fromtimestamp(self.started).strftime("%Y-%m-%d %H:%M")
        return short([*(str(name) for name in names if name), date])

    @cached_property
    def parameters(self) -> dict[str, str]:
        """The sizes, the options of groups, classes of the user, and all overrides, as texts."""
        params: dict[str, Any] = {key: self.config.get(key) for key in ROOT_KEYS}
        for group in GROUPS:
            options = self.options(group)
            params[group] = self._choices[group]
            own = [key for key in OPTIONS if key.startswith(f"{group}.")]
            params |= {key: options.get(key.split(".")[1]) for key in own}
        for key, target in targets(self.config):
            if not target.startswith(("rl4p.", "optax.")):
                params[key] = target
        params |= keys_and_values(self.overrides)
        return {key: str(value) for key, value in params.items() if value is not None}

    @cached_property
    def data_sets(self) -> list[LoggedDataSet]:
        """The data sets that the run uses (`runs/data_sets.py`)."""
        return [LoggedDataSet(**each) for each in self.environment.get("data_sets", ())]

    def options(self, key: str) -> dict[str, Any]:
        """Returns the options of a part of the configuration by its dotted key."""
        node: Any = self.config
        for name in key.split("."):
            node = node.get(name) or {}
        return node

    @cached_property
    def _choices(self) -> dict[str, str | None]:
        """The chosen option of each group, or the name of its class."""
        path = self.folder / ".hydra" / "hydra.yaml"
        hydra = read_mapping(path)["hydra"] if path.exists() else {}
        choices = (hydra.get("runtime") or {}).get("choices") or {}
        shown = {each: choices.get(each) or self.options(each).get("_target_") for each in GROUPS}
        if choices.get("model") == "pretrained" and (model := self.options("model").get("path")):
            shown["model"] = Path(model).name
        return shown

    @property
    def sweep(self) -> str | None:
        """The end of the path of the sweep; None if the run is no job of one."""
        file = self._sweep_file
        return None if file is None else "/".join(file.parent.parts[-2:])

    @cached_property
    def _sweep_file(self) -> Path | None:
        """The file in which Hydra saves what was swept."""
        # Not from hydra.sweep.dir, which is saved with its ${now:...}.
        parents = list(self.folder.resolve().parents)[:3]
        files = (parent / "multirun.yaml" for parent in parents)
        return next((file for file in files if file.exists()), None)


def options_of(tracker: Any, target: str) -> dict[str, Any] | None:
    """Returns the options of the tracker with a ``_target_`` in a node that may hold several."""
    if not isinstance(tracker, Mapping):
        return None
    if tracker.get("_target_") == target:
        return {str(name): value for name, value in tracker.items() if name != "_target_"}
    inner = (options_of(node, target) for node in (tracker.get("trackers") or {}).values())
    return next((options for options in inner if options is not None), None)


def keys_and_values(overrides: Iterable[str]) -> dict[str, str]:
    """Returns the overrides of a command line by key, without housekeeping."""
    by_key = {}
    for override in overrides:
        key, _, value = override.partition("=")
        key = key.lstrip("+~")
        if not is_housekeeping(key):
            by_key[key] = re.sub(r"\\(.)", r"\1", value)  # Hydra saves sqlite\:///...
    return by_key


def is_housekeeping(key: str) -> bool:
    return key.replace("/", ".").replace("@", ".").split(".")[0] in HOUSEKEEPING


def swept(overrides: Iterable[str], params: Mapping[str, Any]) -> dict[str, str]:
    """Returns the values over which a sweep runs, by key: {"seed": "0,1,2"}.

    Args:
      params: ``hydra.sweeper.params``, whose keys the command line may replace.
    """
    shown = {key: str(value) for key, value in params.items()}
    parser = OverridesParser.create()
    for line in overrides:
        try:
            override = parser.parse_override(line)
        except HydraException:  # an older Hydra accepted it
            continue
        key, _, value = line.partition("=")
        shown.pop(key.lstrip("+~"), None)
        if override.is_sweep_override():
            shown[key.lstrip("+~")] = value
    return {key: value for key, value in shown.items() if not is_housekeeping(key)}


def targets(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yields every ``_target_`` in a tree with its dotted key."""
    if isinstance(value, Mapping):
        for name, child in value.items():
            inner = f"{key}.{name}" if key else str(name)
            if name == "_target_":
                yield inner, str(child)
            else:
                yield from targets(child, inner)


def short(words: Iterable[str]) -> str:
    text = " ".join(words)
    return text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 1]}…"
