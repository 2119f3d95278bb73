"""Tests that one file has all that rl4p needs of Hydra's internals, and describes each name."""

import ast
from pathlib import Path

import pytest
from hydra.core import utils

from rl4p.command import launcher
from rl4p.configuration import hydra_internals
from rl4p.runs.folder import save_config

PACKAGE = Path(hydra_internals.__file__).parents[1]


def imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names = {x.name for node in ast.walk(tree) if isinstance(node, ast.Import) for x in node.names}
    return modules | names


@pytest.mark.slow
def test_no_other_file_imports_the_internals_of_hydra():
    files = [
        path for path in PACKAGE.rglob("*.py") if any("hydra._internal" in x for x in imports(path))
    ]
    assert files == [Path(hydra_internals.__file__)]


def test_every_name_is_described():
    for name in hydra_internals.__all__:
        assert name in hydra_internals.__doc__


def test_hydra_writes_the_files_of_a_run_atomically():
    assert launcher.replace_save_config is hydra_internals.replace_save_config
    assert utils._save_config is save_config
