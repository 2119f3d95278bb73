"""Tests the table of families with experts; test_families.py has their numbers."""

import re

import pytest

from rl4p.model.families import FAMILIES


@pytest.mark.parametrize(
    "name", ["model.layers.3.eh_proj.weight", "model.layers.3.mlp.gate.weight"]
)
def test_the_next_layers_are_those_that_predict_further_tokens(read, name):
    pattern = FAMILIES["glm4_moe"].unused.replace("{layers}", str(read("glm4_moe").layers))
    assert re.fullmatch(pattern, name)
    assert not re.fullmatch(pattern, name.replace("3", "2"))
    assert not re.fullmatch(pattern, name.replace("3", "30"))
