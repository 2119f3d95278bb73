"""The schema of a composed configuration: the root keys here, the nodes in `targets.py`."""

from dataclasses import dataclass, fields
from typing import Annotated, Any

from omegaconf import DictConfig, OmegaConf
from pydantic import Field

from rl4p.base.errors import InputError
from rl4p.configuration.bounds import Natural, Positive
from rl4p.configuration.suggestions import write
from rl4p.configuration.targets import (
    check_arguments,
    check_nodes,
    check_type,
    holds_node,
    is_node,
    resolved,
)
from rl4p.configuration.tree import join
from rl4p.configuration.trust import TRUSTED, check_names, check_trust, names_in

Section = Any  # a plain mapping; SECTIONS lists its keys
Group = Any  # a node, or nodes by name
Table = Any  # nodes under names that the user chooses


@dataclass(frozen=True, kw_only=True)
class Root:
    """The root keys and their types. The defaults are in conf/config.yaml."""

    seed: Natural
    steps: Positive
    prompts_per_step: Positive
    group_size: Positive
    max_prompt_tokens: Positive | None
    max_response_tokens: Positive
    max_skipped: Natural
    resume: str | None
    trusted_targets: tuple[str, ...] | str
    allow: tuple[str, ...] | str
    trust: bool
    evaluation: Section
    samples: Section
    ema: Section
    stop: Section
    reference: Section
    debug: Section
    plan: Section
    rollout: Group
    reward: Group
    advantage: Group
    update: Group
    correction: Group
    kl: Group
    entropy: Group
    critic: Group
    collector: Group
    source: Group
    model: Group
    data: Group
    optimizer: Group
    mesh: Group
    tracker: Group
    checkpoint: Group
    teacher: Any  # None, or a node
    hooks: Table
    scores: Table
    transforms: Table


@dataclass(frozen=True, kw_only=True)
class EvaluationKeys:
    """The keys of `evaluation`."""

    every: Natural
    prompts: Positive | None
    term: str
    rollout: Any  # None, or a node
    held_out: bool
    loss: bool
    tasks: Table
    samples: Natural
    pass_at_k: tuple[Annotated[int, Field(ge=2)], ...] | None
    seed: Natural
    chosen_by: str | None
    rows: Positive | None


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The keys of `samples`."""

    every: Natural
    count: Natural
    tokens: bool


@dataclass(frozen=True, kw_only=True)
class EMA:
    """The keys of `ema`."""

    decay: Annotated[float, Field(ge=0, lt=1)]
    use_for_eval: bool

    def __post_init__(self) -> None:
        if not self.decay and not self.use_for_eval:
            raise InputError(
                "ema.use_for_eval=false has no effect, because ema.decay=0 keeps no average: set "
                "ema.decay, or leave it out."
            )


@dataclass(frozen=True, kw_only=True)
class Stop:
    """The keys of `stop`."""

    patience: Positive | None
    target: float | None
    before: str | None


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The keys of `reference`."""

    model: Any  # None, or a node
    reset_every: Natural
    offload: bool


@dataclass(frozen=True, kw_only=True)
class Debug:
    """The keys of `debug`."""

    check_batches: bool
    profile: bool


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The keys of `plan`."""

    search: bool
    memory_gib: Annotated[float, Field(gt=0)] | None
    all_widths: bool
    estimate: bool
    effort: Annotated[float, Field(ge=-1, le=1)]
    check: bool


SECTIONS = {
    "evaluation": EvaluationKeys,
    "samples": Samples,
    "ema": EMA,
    "stop": Stop,
    "reference": Reference,
    "debug": Debug,
    "plan": Plan,
}
OPTIONAL = ("teacher",)
TABLES = ("hooks", "scores", "transforms")
TASKS = "evaluation.tasks"  # a table within a section
PLACES = {  # by group without a key of the root, where options belong
    "agent": "rollout.agent",
    "annealing": "rollout.annealing",
    "environment": "rollout.environment",
    "cache": "collector.cache",
    "filter": "collector.filters.{}",
    "hook": "hooks.{}",
    "partner": "rollout.frozen.{}",
    "runtime": "rollout.environment.runtime",
    "term": "reward.terms.{}",
    "transform": "transforms.{}",
}
GROUPS = [
    field.name
    for field in fields(Root)
    if field.type is Any and field.name not in (*SECTIONS, *TABLES)
]


def check(config: DictConfig, *, targets: bool = True) -> dict[str, Any]:
    """Checks a composed configuration, and returns it resolved and without its `hydra` node.

    Args:
      targets: whether to import the targets and check their arguments, which can be slow.

    Raises:
      InputError: for the first error.
    """
    tree = resolved(without_hydra(config), complete=targets)
    for group in PLACES.keys() & tree.keys():
        raise without_place(group, config.hydra.runtime.choices.get(group) or "OPTION")
    check_arguments("", tree, Root, "the configuration")
    for name, section in SECTIONS.items():
        check_type(name, tree[name], dict)
        check_arguments(name, tree[name], section, name)
        section(**tree[name])  # which refuses options of one section that contradict
    check_names(names := names_in(tree["trusted_targets"]))
    trusted = (*TRUSTED, *names)
    check_trust(tree, trusted)
    for name in GROUPS:
        if not holds_node(tree[name]) and not (name in OPTIONAL and tree[name] is None):
            raise InputError(f"{name} has no _target_: choose one of its options ({name}=NAME).")
    tables = {**{name: tree[name] for name in TABLES}, TASKS: tree["evaluation"]["tasks"]}
    for table, nodes in tables.items():
        check_type(table, nodes, dict)
        for name, node in nodes.items():
            if not is_node(node):
                raise InputError(
                    f"{join(table, name)} has no _target_: add one with "
                    f"+{join(table, name)}._target_=package.module.Class."
                )
    if targets:
        below = {
            join(name, key): tree[name][key] for name in (*SECTIONS, *TABLES) for key in tree[name]
        }
        for key, value in {**{name: tree[name] for name in GROUPS}, **below}.items():
            check_nodes(key, value, trusted, config.hydra.runtime.choices)
    return tree


def without_place(group: str, option: str) -> InputError:
    """Returns the error for an option of a group that is not at the root, without its place."""
    place = PLACES[group].format("mine")
    return InputError(
        write(f"{group}={option} does not say where it belongs", [f"+{group}@{place}={option}"])
    )


def without_hydra(config: DictConfig) -> DictConfig:
    """Returns the configuration without its `hydra` node, as a job receives it."""
    return OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
