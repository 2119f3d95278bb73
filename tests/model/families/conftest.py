"""What tests of one family have in common: a small config.json of it, read and written."""

import pytest

from rl4p.model.families import FAMILIES, family_of
from tests.golden.cases import CASES

WHERE = "a/config.json"


@pytest.fixture(scope="session")
def read():
    """Reads a case's config.json with keys changed; a key that is None is written as null."""

    def read(case, change=(), *, without=()):
        config = {k: v for k, v in (CASES[case] | dict(change)).items() if k not in without}
        return family_of(config, WHERE).read_config(config, WHERE)

    return read


@pytest.fixture(scope="session")
def written():
    """The keys of an exported config.json."""
    return lambda config: FAMILIES[config.family].write_config(config)


@pytest.fixture(scope="session")
def tensors():
    """Every tensor of a checkpoint by its name in the files."""

    def tensors(config):
        found = list(FAMILIES[config.family].names(config))
        by_name = {tensor.name: tensor for tensor in found}
        assert len(by_name) == len(found)
        return by_name

    return tensors
