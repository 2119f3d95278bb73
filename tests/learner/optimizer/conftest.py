import pytest

from rl4p.distributed.parameters import DECLARED, Parameter, vector


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    """Declares the parameters of small trees that no module owns."""
    for name in ("kernel", "gate", "up", "down"):
        monkeypatch.setitem(DECLARED, name, Parameter((None, None)))
    monkeypatch.setitem(DECLARED, "bias", vector())
