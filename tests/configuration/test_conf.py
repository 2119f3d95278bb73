"""Tests the YAML of the package: every file composes and fits its target."""

import re
import statistics
import tomllib
from itertools import zip_longest

import pytest
from omegaconf import OmegaConf

from rl4p import configuration
from rl4p.configuration.composition import CONF, Composer
from rl4p.configuration.schema import OPTIONAL, PLACES

# Options of these groups change others, or refuse them.
ALONE = ("agent", "annealing", "cache", "environment", "experiment", "filter", "reward")
ALONE += ("partner", "runtime")
HARBOR = ["+environment@rollout.environment=harbor", "rollout.environment.path=tasks"]
FACTORY = "rollout.environment.factory._target_=rl4p.advantage.grpo.GRPO"  # makes an object
OPTIONS = sorted(path.relative_to(CONF).with_suffix("") for path in CONF.glob("*/*.yaml"))
REQUIRED = {
    "experiment=arithmetic_distill": ["teacher.path=teacher"],
    "experiment=arithmetic_gkd": ["teacher.path=teacher"],
    "data=csv": ["data.path=train.csv"],
    "data=huggingface": ["data.path=openai/gsm8k"],
    "data=jsonl": ["data.path=train.jsonl"],
    "data=math": ["data.path=train.jsonl"],
    "data=memory": ["data.rows=[]"],
    "data=reasoning_gym": ["data.name=chain_sum"],
    "experiment=conversations_sft": ["data.path=chats.jsonl"],
    "experiment=math_grpo": ["data.path=train.jsonl"],
    "data=parquet": ["data.path=train.parquet"],
    "data=preferences": ["data.path=pairs.jsonl"],
    "experiment=preferences_dpo": ["data.path=pairs.jsonl"],
    "experiment=preferences_reward": ["data.path=pairs.jsonl"],
    "model=pretrained": ["model.path=weights"],
    "model=run": ["model.run=outputs/first"],
    "annealing=linear": ["rollout.annealing.end=0.5"],
    "rollout=environment": ["+environment@rollout.environment=tool_object", FACTORY],
    "rollout=agent": ["rollout.agent._target_=rl4p.advantage.grpo.GRPO"],
    "experiment=environment_sft": ["data.path=conversations.jsonl"],
    **{f"experiment={game}_gigpo": ["data.path=questions.jsonl"] for game in ("guess", "grid")},
    **{
        f"experiment={name}": ["trusted_targets=experiments"]
        for name in ("sums_agent", "calculator_agent")
    },
    **{
        f"environment={name}": ["rollout=environment", FACTORY]
        for name in ("gymnasium", "tool_object")
    },
    **{
        f"environment={name}": ["rollout=environment", "rollout.environment.url=http://localhost:9"]
        for name in ("mcp", "openenv")
    },
    "experiment=repair_grpo": ["rollout.environment.path=tasks"],
    "environment=textarena": ["rollout=environment", "rollout.environment.factory.id=2048-v0"],
    "environment=harbor": ["rollout=environment", "rollout.environment.path=tasks"],
    **{f"runtime={name}": ["rollout=environment", *HARBOR] for name in ("bubblewrap", "container")},
    "partner=chat": [
        *("rollout=environment", "+environment@rollout.environment=gymnasium", FACTORY),
        *(
            "rollout.environment.roles=[my_chat,y]",
            "rollout.frozen.my_chat.url=http://localhost:9/v1",
        ),
    ],
    "agent=command": ["rollout=agent", "rollout.agent.command=[program]"],
    "agent=verifiers": ["rollout=agent", "rollout.agent.env.taskset.id=tasks"],
    "cache=success_cache": ["collector=dynamic_sampling"],
    **{
        f"filter={path.stem}": ["collector=dynamic_sampling"]
        for path in (CONF / "filter").glob("*.yaml")
    },
    "filter=least_reward": [
        "collector=asynchronous",
        "collector.filters.my_least_reward.least=0.5",
    ],
    "rollout=openai": ["rollout.servers=[http://localhost:9]", "rollout.model=m"],
    "rollout=sglang": ["rollout.servers=[http://localhost:9]"],
    "rollout=vllm": ["rollout.servers=[http://localhost:9]"],
    "source=easy_pool": ["source.easy={level: 1}"],
    "teacher=own_teacher": ["advantage=distill", "teacher.prompt='{answer}'"],
    "teacher=served_teacher": ["advantage=distill", "teacher.servers=[http://localhost:9]"],
    "transform=gfpo": ["transforms.my_gfpo.keep=2"],
    "transform=truncate": ["transforms.my_truncate.most=8"],
    "term=classifier": ["reward.terms.my_classifier.path=classifier"],
    "term=http_scorer": ["reward.terms.my_http_scorer.url=http://localhost:9/score"],
    "term=llm_judge": [
        "reward.terms.my_llm_judge.url=http://localhost:9/v1",
        "reward.terms.my_llm_judge.model=m",
    ],
}


def test_no_target_is_above_the_floor_of_its_group():
    """The other options of a group give its floor. CONTRIBUTING.md says why one is above."""
    (contract, *_) = tomllib.loads((CONF.parent / "pyproject.toml").read_text())["tool"][
        "importlinter"
    ]["contracts"]
    names = [re.findall(r"\w+", layer) for layer in contract["layers"]]
    height = {name: -floor for floor, row in enumerate(names) for name in row}
    above = []
    for folder in (each for each in CONF.iterdir() if each.is_dir() and each.name != "experiment"):
        floors = {
            path.stem: [height[x] for x in re.findall(r"_target_: rl4p\.(\w+)", path.read_text())]
            for path in folder.glob("*.yaml")
        }
        usual = statistics.mode([x for each in floors.values() for x in each] or [0])
        above += [
            f"{folder.name}={name}"
            for name, own in floors.items()
            if max(own, default=usual) > usual
        ]
    assert above == ["model=run"]


def test_the_defaults_fit():
    configuration.compose()


def choices(option):
    """Returns the overrides that choose an option, as "group=name", and give its required keys."""
    group, _, name = option.partition("=")
    # An option that belongs below another key has a name of its own there.
    chosen = f"+{group}@{PLACES[group].format('my_' + name)}={name}" if group in PLACES else option
    chosen = f"+{option}" if group in OPTIONAL else chosen  # by default there is none
    return [chosen, *REQUIRED.get(option, [])]


def rounds():
    """Returns lists of options: one of each group that can be combined, or one option alone."""
    groups = {}
    for path in OPTIONS:
        groups.setdefault(str(path.parent), []).append(f"{path.parent}={path.name}")
    alone = [option for group in ALONE for option in groups.pop(group)]
    together = [list(filter(None, options)) for options in zip_longest(*groups.values())]
    return [*together, *([option] for option in alone)]


@pytest.mark.quick(2)
@pytest.mark.parametrize("options", rounds(), ids=" ".join)
def test_every_option_fits(options):
    configuration.compose([override for option in options for override in choices(option)])


# Groups that choose nothing of what is learned.
STABLE = {"checkpoint", "debug", "hook", "mesh", "plan", "suite", "sweep", "tracker"}


@pytest.mark.slow
def test_what_no_recipe_measures_is_experimental():
    """A recipe measures what it composes, and the options that docs/recipes.md names.

    One for two cores that says it was not measured measures nothing.
    """
    composer = Composer(CONF)
    root = CONF.parent
    text = (root / "docs/recipes.md").read_text()
    measured, targets = set(re.findall(r"\b([a-z]+)=(\w+)", text)), set()
    unmeasured = set(
        re.findall(r"^\| `(\w+)` .*\| two CPU cores \|.*\| not measured \|$", text, re.MULTILINE)
    )
    names = {path.stem for path in (root / "experiments").glob("*.yaml")} - unmeasured
    recipes = [f"experiment={name}" for name in sorted(names)]
    for words in ([], ["suite=sums"], *([recipe] for recipe in recipes)):
        config = composer.load(words)
        choices = config.hydra.runtime.choices.items()
        measured |= {(place.partition("@")[0], option) for place, option in choices}
        targets |= set(re.findall(r"_target_: (\S+)", OmegaConf.to_yaml(config)))
    for path in CONF.glob("*/*.yaml"):
        text = path.read_text()
        target = re.search(r"^_target_: (\S+)", text, re.MULTILINE)
        stable = (
            path.parent.name in {*STABLE, "experiment"}
            or path.stem == "none"
            or (path.parent.name, path.stem) in measured
            or (target is not None and target[1] in targets)
        )
        promise = "\n# Experimental: no recipe measures it, and its keys may change.\n"
        assert (promise in f"\n{text}") == (not stable), path
