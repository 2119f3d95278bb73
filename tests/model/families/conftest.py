"""Fixtures for the tests of one family: a small config.json, and the names of its tensors."""

import pytest

from rl4p.model.families import FAMILIES, family_of
from rl4p.model.families.keys import Keys
from tests.golden.cases import CASES

WHERE = "a/config.json"


@pytest.fixture(scope="session")
def read():
    """Returns a function that reads a case's config.json with changed keys (None: null)."""

    def read(case, change=(), *, without=()):
        config = {k: v for k, v in (CASES[case] | dict(change)).items() if k not in without}
        return family_of(config, WHERE).read_config(Keys(config, WHERE))

    return read


@pytest.fixture(scope="session")
def written():
    """Returns a function that exports the keys of config.json."""
    return lambda config: FAMILIES[config.family].write_config(config)


@pytest.fixture(scope="session")
def tensors():
    """Returns a function that lists every tensor of a checkpoint by its name in the files."""

    def tensors(config):
        all_tensors = list(FAMILIES[config.family].names(config))
        by_name = {tensor.name: tensor for tensor in all_tensors}
        assert len(by_name) == len(all_tensors)
        return by_name

    return tensors
