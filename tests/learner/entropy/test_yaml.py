"""Tests that the YAML of the group has the defaults of its classes."""

from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

CONF = Path(__file__).resolve().parents[3] / "conf" / "entropy"


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_yaml_has_the_defaults_of_the_class(path):
    option = instantiate(OmegaConf.load(path))
    assert option == type(option)()
