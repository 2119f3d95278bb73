"""Tests the contents of `pip install .`: the package, its configuration, recipes and model."""

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILE = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, GROUPS = FILE["project"], FILE["dependency-groups"]
EXTRAS = PROJECT["optional-dependencies"]
PIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!+]+")


def distribution(requirement: str) -> str:
    """Returns the normalised name of a requirement, as package indexes compare names."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name is not None, requirement
    return re.sub(r"[-_.]+", "-", name[0]).lower()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the source distribution and returns the wheel made from it, as for a release."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, text=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the unpacked wheel; installing a pure wheel does nothing else."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def files_below(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_carries_the_package_whole(installed: Path) -> None:
    assert files_below(ROOT / "rl4p") <= files_below(installed / "rl4p")


def test_the_wheel_carries_the_configuration_and_the_recipes(installed: Path) -> None:
    conf = installed / "rl4p" / "conf"
    assert files_below(ROOT / "conf") <= files_below(conf)  # rglob does not follow conf/experiment
    recipes = {name for name in files_below(ROOT / "experiments") if name.endswith(".yaml")}
    assert files_below(conf / "experiment") == recipes
    assert (conf / "config.yaml").exists()


def test_the_wheel_carries_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert {name.split("/")[0].split("-")[0] for name in archive.namelist()} == {"rl4p"}


def test_an_installed_package_composes_its_configuration_from_any_folder(
    installed: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "rl4p.train", "--cfg", "job", "--resolve"]
    shown = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
    )
    assert shown.returncode == 0, shown.stderr
    assert "_target_: rl4p.advantage.grpo.GRPO" in shown.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("script", PROJECT["scripts"].values())
def test_a_script_stands_for_a_function(script: str) -> None:
    module, _, function = script.partition(":")
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_what_the_package_imports_is_required() -> None:
    """A package that is installed only as a dependency of another may disappear with it."""
    owners = packages_distributions()
    imported = set()
    for path in (ROOT / "rl4p").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.split(".")[0])
    third_party = imported - set(sys.stdlib_module_names) - {"rl4p"}
    # Options that need these extras import them when they are chosen, and name absent ones.
    optional = ("tensorboard", "wandb", "datasets", "reasoning-gym", "math", "openenv", "mcp")
    extras = [requirement for name in optional for requirement in EXTRAS[name]]
    required = {distribution(requirement) for requirement in [*PROJECT["dependencies"], *extras]}
    assert not {
        module
        for module in third_party
        if required.isdisjoint(map(distribution, owners.get(module, [module])))
    }


def test_extras_have_normalised_names() -> None:
    """The pip of Python 3.11 finds no extra whose name has an underscore, and only warns."""
    assert [name for name in EXTRAS if name != distribution(name)] == []


def test_every_requirement_has_its_tested_version() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert not [line for line in pins if not PIN.fullmatch(line)]  # neither hosts nor paths
    required = {
        distribution(requirement)
        for requirements in (
            PROJECT["dependencies"],
            *EXTRAS.values(),
            *GROUPS.values(),
        )
        for requirement in requirements
    }
    assert required <= {distribution(line) for line in pins}
