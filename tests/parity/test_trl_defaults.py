"""Tests that rl4p.translate has the defaults of the installed TRL."""

from pathlib import Path

import pytest

from rl4p.configuration.yaml_file import read_mapping
from rl4p.tools import translation

PEER = read_mapping(Path(translation.__file__).with_name("peers.yaml"))["trl"]


@pytest.mark.parity
def test_the_defaults_are_those_of_this_version():
    trl = pytest.importorskip("trl")
    fields = trl.GRPOConfig.__dataclass_fields__
    defaults = {key: fields[key].default for key in PEER["defaults"]} | {"bf16": True}
    assert defaults == PEER["defaults"]
    assert PEER["name"] == f"TRL {trl.__version__}"
