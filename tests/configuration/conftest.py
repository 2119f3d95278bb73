"""A small tree of YAML files (tests/support/toy.py), with targets that are fast to import."""

import pytest

from tests.support.toy import attack, canary, toy, toy_folder

__all__ = ["attack", "canary", "toy", "toy_folder"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "attack" in getattr(item, "fixturenames", ()):
            item.add_marker("hostile")
