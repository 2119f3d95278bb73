"""Tests the YAML of the package: every file composes and fits its target."""

import pytest

from rl4p import configuration
from rl4p.configuration.composition import CONF
from rl4p.configuration.schema import PLACES

OPTIONS = sorted(path.relative_to(CONF).with_suffix("") for path in CONF.glob("*/*.yaml"))
REQUIRED = {
    "experiment=arithmetic_distill": ["teacher.path=teacher"],
    "data=csv": ["data.path=train.csv"],
    "data=huggingface": ["data.path=openai/gsm8k"],
    "data=jsonl": ["data.path=train.jsonl"],
    "data=math": ["data.path=train.jsonl"],
    "data=memory": ["data.rows=[]"],
    "data=reasoning_gym": ["data.name=chain_sum"],
    "experiment=conversations_sft": ["data.path=chats.jsonl"],
    "data=parquet": ["data.path=train.parquet"],
    "model=pretrained": ["model.path=weights"],
    "term=classifier": ["reward.terms.x.path=classifier"],
    "term=http_scorer": ["reward.terms.x.url=http://localhost:9/score"],
    "term=llm_judge": ["reward.terms.x.url=http://localhost:9/v1", "reward.terms.x.model=m"],
}


def test_the_defaults_fit():
    configuration.compose()


@pytest.mark.parametrize("option", [f"{path.parent}={path.name}" for path in OPTIONS])
def test_every_option_fits(option):
    group, _, name = option.partition("=")
    chosen = f"+{group}@{PLACES[group].format('x')}={name}" if group in PLACES else option
    configuration.compose([chosen, *REQUIRED.get(option, [])])
