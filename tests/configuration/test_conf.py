"""The YAML that comes with the package: all of it composes, and fits its targets."""

import pytest
import yaml

from rl4p import configuration
from rl4p.configuration.composition import CONF

# Groups that the defaults list does not name yet cannot be chosen; their own tests read their YAML.
GROUPS = {
    group
    for entry in yaml.safe_load((CONF / "config.yaml").read_text())["defaults"]
    if isinstance(entry, dict)
    for group in entry
}
OPTIONS = sorted(
    path.relative_to(CONF).with_suffix("")
    for path in CONF.glob("*/*.yaml")
    if path.parent.name in GROUPS
)
REQUIRED = {
    "data=gsm8k": ["data.path=train.jsonl"],
    "data=jsonl": ["data.path=train.jsonl"],
    "model=pretrained": ["model.path=weights"],
}


def test_the_defaults_fit():
    configuration.compose()


@pytest.mark.parametrize("option", [f"{path.parent}={path.name}" for path in OPTIONS])
def test_every_option_fits(option):
    configuration.compose([option, *REQUIRED.get(option, [])])
