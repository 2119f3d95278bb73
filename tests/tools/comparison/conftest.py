"""Fixtures that write the folders of runs without training, for statistics, faults and scale."""

import pytest

from tests.support.compared_runs import write_sweep


@pytest.fixture
def sweep(tmp_path):
    return write_sweep(tmp_path / "sweep")
