"""Fixtures of several tests of models."""

import shutil

import pytest

from rl4p.model.huggingface import write_policy
from tests.support.adapters import OWN, build, moved


@pytest.fixture(scope="session")
def exported_adapter(tmp_path_factory):
    """Returns a folder with an adapter and its merged model, and the adapters."""
    folder = tmp_path_factory.mktemp("exported")
    policy, adapters = build("rl4p/tiny", lora=OWN)
    adapters = moved(adapters)
    write_policy(folder / "adapter", policy, adapters, adapter=True)
    write_policy(folder / "merged", policy, adapters)
    return folder, adapters


@pytest.fixture
def adapter_folder(exported_adapter, tmp_path):
    """Returns a copy of the adapter, which a test may edit."""
    return shutil.copytree(exported_adapter[0] / "adapter", tmp_path / "adapter")
