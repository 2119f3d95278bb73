"""The folder in which a launch script runs."""

import pytest

from tests.support.launch import Place


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path)
