import pytest

from rl4p.distributed.parameters import DECLARED, Parameter, vector


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    """Parameters of small trees, which have no module around them."""
    for name in ("kernel", "gate", "up", "down"):
        monkeypatch.setitem(DECLARED, name, Parameter((None, None)))
    monkeypatch.setitem(DECLARED, "bias", vector())
