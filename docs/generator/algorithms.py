"""The paper index: each estimator and each term of the loss with paper, command, formula, curve."""

import dataclasses
import re
from functools import cache
from typing import Any, NamedTuple

from docs.generator.docstrings import (
    arxiv,
    attributes,
    body,
    first_sentence,
    linked,
    located,
    of_module,
    papers,
)
from docs.generator.options import ROOT, Option, groups
from docs.generator.tables import table

TITLES = {
    "advantage": "Advantages",
    "update": "Losses",
    "kl": "KL penalties",
    "entropy": "Entropy",
    "correction": "Corrections for the sampler",
    "critic": "Critics",
}
# The commands of options that do not work alone; GROUP=OPTION is the command of the others.
COMMANDS = {
    "advantage=constant": "experiment=arithmetic_sft",
    "advantage=distill": "experiment=arithmetic_distill teacher.path=FOLDER",
    "advantage=gae": "advantage=gae critic=shared",
    "advantage=preference": "advantage=preference update=dpo",
    "critic=separate": "advantage=gae critic=separate",
    "critic=shared": "advantage=gae critic=shared",
    "update=dpo": "advantage=preference update=dpo",
    "update=gkd": "experiment=arithmetic_gkd teacher.path=FOLDER",
    "update=kimi": "advantage=dr_grpo update=kimi",
    "update=kto": "experiment=arithmetic_kto",
    "update=reward_model": "experiment=preferences_reward data.path=FILE",
    "update=score_centering": "update=score_centering rollout.alternatives=128",
    "update=sft": "experiment=arithmetic_sft",
}
# The row of the catalogue that measured an option, if it is not its command.
MEASURED = {
    "advantage=distill": "experiment=arithmetic_distill",
    "update=kimi": "update=kimi",
    "update=ppo": "advantage=grpo",
}
ROW = re.compile(r"^\| `([^`]+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


class Measurement(NamedTuple):
    """A row of experiments/catalogue.md."""

    chosen: str
    last: str
    least: str
    steps: str


@cache
def catalogue() -> dict[str, Measurement]:
    """Returns the rows of the catalogue by their options."""
    text = (ROOT / "experiments" / "catalogue.md").read_text()
    return {found[0]: Measurement(*found) for found in ROW.findall(text)}


def command(option: Option) -> str:
    """Returns the overrides that select an option, with what it needs."""
    choice = f"{option.group}={option.name}"
    return COMMANDS.get(choice, choice)


def measurement(option: Option) -> Measurement | None:
    choice = f"{option.group}={option.name}"
    return catalogue().get(MEASURED.get(choice, command(option)))


def index() -> str:
    """Returns the table of all options of the groups in `TITLES`."""
    rows = []
    for group in TITLES:
        for option in groups()[group]:
            cls, found = located(option.target or ""), measurement(option)
            rows.append(
                (
                    f"[`{group}={option.name}`]({group}.md#{option.name})",
                    first_sentence(linked(of_module(cls.__module__))),
                    ", ".join(map(arxiv, papers(cls))),
                    f"[{found.last}](catalogue.md)" if found else "",
                )
            )
    return table(("option", "what it is", "papers", "pass@1, 40 steps"), rows)


def page(group: str) -> str:
    """Returns the page of one group."""
    options = groups()[group]
    classes = [located(option.target or "") for option in options]
    shared = next((parent for parent in map(parent_of, classes) if parent), None)
    parts = [f"# {TITLES[group]}", linked(of_module(classes[0].__module__.rpartition(".")[0]))]
    if shared is not None:
        keys = {key.name: key for option in options for key in option.keys}
        names = [each.name for each in dataclasses.fields(shared) if each.name in keys]
        meanings = attributes(shared)
        rows = [(f"`{group}.{name}`", meanings.get(name, keys[name].comment)) for name in names]
        parts += [f"{body(shared)} They are:", table(("key", "meaning"), rows)]
    parts += [section(option, cls) for option, cls in zip(options, classes, strict=True)]
    return "\n\n".join(parts) + "\n"


def section(option: Option, cls: Any) -> str:
    """Returns the part of a page about one option."""
    parts = [f"## {option.name}", f"```sh\npython -m rl4p.train {command(option)}\n```"]
    parts.append(body(cls))
    meanings, parent = attributes(cls), parent_of(cls)
    inherited = {} if parent is None else {each.name: each for each in dataclasses.fields(parent)}
    rows = [
        (f"`{option.group}.{key.name}`", f"`{key.value}`", meanings.get(key.name, key.comment))
        for key in option.keys
        if key.name not in inherited or key.name in vars(cls).get("__annotations__", {})
    ]
    if rows:
        parts.append(table(("key", "default", "meaning"), rows))
    if found := measurement(option):
        parts.append(
            f"Measured with `{found.chosen}`: held-out pass@1 {found.last} after 40 steps over "
            f"three seeds; the best of the worst seed is {found.least}; steps to 0.8 by seed: "
            f"{found.steps} ([catalogue](catalogue.md))."
        )
    return "\n\n".join(parts)


def parent_of(cls: Any) -> Any:
    """Returns the dataclass that gives options to a whole group, or None."""
    return next((each for each in cls.__mro__[1:] if dataclasses.is_dataclass(each)), None)
