import re

import pytest

from rl4p.configuration.composition import Composer
from rl4p.configuration.schema import Root
from rl4p.configuration.suggestions import (
    KEYS,
    OPTIONS,
    SECTIONS,
    key_correction,
    option_correction,
    write,
)


def test_a_name_has_one_correction_and_is_no_key_of_the_root():
    names = [name for known in KEYS for name in known.names.split()]
    assert len(names) == len(set(names))
    assert not set(names) & set(Root.__dataclass_fields__)


# A value of each kind, for overrides that take any value.
VALUES = {
    "seed": "1",
    "optimizer.schedule": "cosine",
    "model.dtype": "bfloat16",
    "advantage": "rloo",
}
VALUES |= {"update": "gspo", "optimizer": "lion", "data": "jsonl", "tracker": "none"}
VALUES |= {"update.clip_low": "0.1", "+reward.terms.mine._target_": "rl4p.reward.answers.Correct"}


@pytest.mark.slow
@pytest.mark.parametrize("known", [*KEYS, *OPTIONS], ids=lambda known: str(known[:2]))
def test_every_correction_in_the_table_composes(known):
    composer = Composer()
    lines = [
        word.replace("{}", VALUES.get(word.partition("=")[0], "1"))
        for word in known.overrides.split()
    ]
    lines = ["data.path=x" if line == "data.path=1" else line for line in lines]
    config = composer.load(lines)  # unknown keys and options are refused here
    assert config is not None


def test_the_value_takes_the_place_of_the_braces_and_may_have_spaces():
    correction = key_correction("model_path", "my model")
    assert correction is not None
    assert correction.overrides == ["model=pretrained", "model.path=my model"]
    assert correction.after("No") == "No: write model=pretrained 'model.path=my model'"


def test_the_last_name_of_a_key_counts_unless_the_whole_key_is_asked_for():
    assert key_correction("trainer.lr", "1") == key_correction("lr", "1")
    assert key_correction("trainer.lr", "1", whole=True) is None
    assert key_correction("kl.coefficient", "1", whole=True) is not None
    assert key_correction("coefficient", "1") is None


def test_the_reason_is_part_of_the_message():
    correction = option_correction("mesh", "gpu")
    assert correction is not None
    assert (
        correction.after("No") == "No (mesh=auto uses all devices that JAX finds): write mesh=auto"
    )


def test_the_names_of_a_group_match_as_a_whole():
    assert option_correction("mesh", "gpus_of_mine") is None
    assert option_correction("kl", "-0.1") is not None
    assert option_correction("kl", "fixed_1") is None


def test_several_choices_are_joined():
    assert write("No", ["a=1"], ["b=2", "c=3"]) == "No: write a=1 or b=2 c=3"


def test_sections_are_those_of_the_root():
    assert set(SECTIONS) <= set(Root.__dataclass_fields__)
    for key, overrides in SECTIONS.items():
        assert re.fullmatch(rf"{key}\.\w+=\{{\}}", overrides)
