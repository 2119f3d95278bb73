"""Shorter pauses between the requests to a server."""

import pytest


@pytest.fixture
def impatient(monkeypatch):
    """Between attempts there are almost no pauses."""
    monkeypatch.setattr("rl4p.base.http.FIRST_PAUSE", 0.001)
