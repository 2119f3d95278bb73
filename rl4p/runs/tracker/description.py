"""What trackers show of a run beside its metrics: name, parameters and data sets, from its folder.

Trackers read the folder, not the objects of the run, so that `rl4p.send` shows the same later.
"""

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
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


class Description:
    """The description of the run in `folder`, after `Record.describe` was called."""

    def __init__(self, folder: Path):
        config, overrides, hydra = folder / "config.yaml", [], {}
        self.config = read_mapping(config)
        self.started = config.stat().st_mtime  # seconds: when the record was begun, or resumed
        self.environment = json.loads((folder / "environment.json").read_text("utf-8"))
        self.is_evaluation = self.environment.get("kind") == EVALUATION
        # As `runs.environment.data_sets` has them.
        self.data_sets: list[dict[str, Any]] = self.environment.get("data_sets") or []

        # What Hydra saved of the command line, and the options that it chose.
        if (path := folder / ".hydra" / "overrides.yaml").exists():
            overrides = read_yaml(path) or []
        self.overrides: dict[str, str] = {}  # by key, without housekeeping
        for override in overrides:
            key, _, value = override.partition("=")
            if not is_housekeeping(key := key.lstrip("+~")):
                # Hydra saves sqlite\:///...
                self.overrides[key] = re.sub(r"\\(.)", r"\1", value)
        own = self.environment.get("command")  # of an evaluation
        self.command: str = own or shlex.join(["python", "-m", "rl4p.train", *overrides])
        if (path := folder / ".hydra" / "hydra.yaml").exists():
            hydra = read_mapping(path)["hydra"]
        # The chosen option of each group, or the name of its class.
        chosen = (hydra.get("runtime") or {}).get("choices") or {}
        self.choices = {x: chosen.get(x) or self.options(x).get("_target_") for x in GROUPS}
        if chosen.get("model") == "pretrained" and (model := self.options("model").get("path")):
            self.choices["model"] = Path(model).name

        # The end of the path of the sweep, if the run is a job of one, and the keys that differ
        # between its jobs. Not from hydra.sweep.dir, which is saved with its ${now:...}.
        self.sweep, self.swept = None, []
        for parent in list(folder.resolve().parents)[:3]:
            if (path := parent / "multirun.yaml").exists():
                hydra = read_mapping(path).get("hydra") or {}
                task = (hydra.get("overrides") or {}).get("task") or []
                self.sweep = "/".join(parent.parts[-2:])
                self.swept = list(swept(task, (hydra.get("sweeper") or {}).get("params") or {}))
                break

    @property
    def name(self) -> str:
        """What differs in its sweep ("advantage=rloo seed=2"), or the overrides of a single run.

        A run without overrides has the names of its model and task, and its date.
        """
        values = self.overrides
        if shown := {key: values[key] for key in self.swept if key in values} or values:
            words = []
            for key, value in shown.items():
                is_path = value.startswith(("/", "./", "../", "~"))
                words.append(f"{key}={Path(value).name if is_path else value}")
            return short(words)
        names = ["evaluation"] if self.is_evaluation else []
        names += [self.choices["model"], self.options("data").get("task") or self.choices["data"]]
        date = datetime.fromtimestamp(self.started).strftime("%Y-%m-%d %H:%M")
        return short([*(str(name) for name in names if name), date])

    @property
    def parameters(self) -> dict[str, str]:
        """The sizes, the options of groups, classes of the user, and all overrides, as texts."""
        params: dict[str, Any] = {key: self.config.get(key) for key in ROOT_KEYS}
        for group in GROUPS:
            options = self.options(group)
            params[group] = self.choices[group]
            own = [key for key in OPTIONS if key.startswith(f"{group}.")]
            params |= {key: options.get(key.split(".")[1]) for key in own}
        for key, target in targets(self.config):
            if not target.startswith(("rl4p.", "optax.")):
                params[key] = target
        params |= self.overrides
        return {key: str(value) for key, value in params.items() if value is not None}

    def options(self, key: str) -> dict[str, Any]:
        """Returns the options of a part of the configuration by its dotted key."""
        node: Any = self.config
        for name in key.split("."):
            node = node.get(name) or {}
        return node


def options_of(node: Any, target: str) -> dict[str, Any] | None:
    """Returns the options of a tracker without ``_target_``, or None if it is not there.

    Args:
      node: the configuration of a tracker, or of several (`trackers`).
      target: the ``_target_`` of the one that is looked for.
    """
    if not isinstance(node, Mapping):
        return None
    if node.get("_target_") == target:
        return {str(name): value for name, value in node.items() if name != "_target_"}
    inner = (options_of(each, target) for each in (node.get("trackers") or {}).values())
    return next((options for options in inner if options is not None), None)


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
