"""Tests the YAML of the package: every file composes and fits its target."""

import pytest

from rl4p import configuration
from rl4p.configuration.composition import CONF
from rl4p.configuration.schema import PLACES

OPTIONS = sorted(path.relative_to(CONF).with_suffix("") for path in CONF.glob("*/*.yaml"))
REQUIRED = {
    "experiment=arithmetic_distill": ["teacher.path=teacher"],
    "data=gsm8k": ["data.path=train.jsonl"],
    "data=jsonl": ["data.path=train.jsonl"],
    "model=pretrained": ["model.path=weights"],
    "term=classifier": ["reward.terms.x.path=classifier"],
}


def test_the_defaults_fit():
    configuration.compose()


@pytest.mark.parametrize("option", [f"{path.parent}={path.name}" for path in OPTIONS])
def test_every_option_fits(option):
    group, _, name = option.partition("=")
    chosen = f"+{group}@{PLACES[group].format('x')}={name}" if group in PLACES else option
    configuration.compose([chosen, *REQUIRED.get(option, [])])
