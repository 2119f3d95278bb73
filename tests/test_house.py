"""Checks project rules that linters do not know: names, complete YAML options, short files."""

import ast
import dataclasses
import importlib
import re
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LONG
from tests.house.size import sizes
from tests.support.options import keys_of, option, parents_of

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, CONF, EXPERIMENTS = ROOT / "rl4p", ROOT / "conf", ROOT / "experiments"

# For each configuration group, the package of its options, with one module for each, or the module
# of all of them.
PHASES = {
    **{group: f"rl4p.{group}" for group in ("rollout", "reward", "advantage", "update")},
    **{group: f"rl4p.learner.{group}" for group in ("correction", "kl", "entropy")},
    **{
        group: f"rl4p.loop.{group}"
        for group in ("cache", "collector", "filter", "source", "transform")
    },
    "annealing": "rl4p.rollout.annealing",
    "environment": "rl4p.rollout.environments",
    "hook": "rl4p.runs.hook",
    "partner": "rl4p.rollout.partner",
    "runtime": "rl4p.rollout.runtimes",
    "teacher": "rl4p.loop.teacher",
    "term": "rl4p.reward",
}
# The groups whose modules are topics, each with several options.
TOPICS = {"environment", "term"}
ENTRY_POINTS = ("train", "plan", "export", "send", "evaluate", "generate", "regrade", "samples")
ENTRY_POINTS += ("compare", "serve", "translate")
INSTANTIATE_KEYS = {"_target_", "_partial_", "_recursive_", "_convert_", "_args_"}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def ours(node: Any) -> Iterator[dict]:
    """Yields every mapping in a YAML tree that instantiates a class of this package."""
    if isinstance(node, dict):
        if str(node.get("_target_", "")).startswith("rl4p."):
            yield node
        for child in node.values():
            yield from ours(child)
    elif isinstance(node, list):
        for child in node:
            yield from ours(child)


def locate(target: str) -> Any:
    module, _, name = target.rpartition(".")
    return getattr(importlib.import_module(module), name)


def is_link(path: Path) -> bool:
    return any(parent.is_symlink() for parent in (path, *path.parents))


MODULES = sorted(PACKAGE.rglob("*.py"))
OPTIONS = sorted(path for path in CONF.glob("*/*.yaml") if not is_link(path))
# An option that inherits from another of its group chooses values of it, and has no module.
PHASE_OPTIONS = [
    path
    for path in OPTIONS
    if path.parent.name in PHASES and ("_target_" in option(path) or not parents_of(path))
]
TARGETS = [
    pytest.param(node, id=f"{relative(path)}:{node['_target_']}")
    for path in OPTIONS
    for node in ours(keys_of(path))
]


@pytest.mark.parametrize("path", PHASE_OPTIONS, ids=relative)
def test_a_phase_has_one_name_in_its_yaml_file_its_module_and_its_class(path: Path) -> None:
    group, name = path.parent.name, path.stem
    module, _, class_name = keys_of(path)["_target_"].rpartition(".")
    if group in TOPICS:
        assert module.rpartition(".")[0] == PHASES[group]
    else:
        assert module in (PHASES[group], f"{PHASES[group]}.{name}")
    assert class_name.casefold() == name.replace("_", "")


@pytest.mark.parametrize("path", PHASE_OPTIONS, ids=relative)
def test_a_phase_is_one_documented_frozen_dataclass(path: Path) -> None:
    target = keys_of(path)["_target_"]
    module = importlib.import_module(target.rpartition(".")[0])
    public: list[Any] = [
        member
        for name, member in vars(module).items()
        if dataclasses.is_dataclass(member)
        and member.__module__ == module.__name__
        and not name.startswith("_")
    ]
    phase = locate(target)
    assert phase in public
    # A group whose options are short has one module for all of them, or one for each topic.
    group = path.parent.name
    assert public == [phase] or module.__name__ == PHASES[group] or group in TOPICS
    assert phase.__dataclass_params__.frozen
    assert all(field.kw_only for field in dataclasses.fields(phase))
    # Without a docstring a dataclass gets its signature as one.
    assert not vars(phase)["__doc__"].startswith(f"{phase.__name__}(")


@pytest.mark.parametrize("node", TARGETS)
def test_every_option_of_a_target_stands_in_the_yaml_and_the_reverse(node: dict) -> None:
    target = locate(node["_target_"])
    assert dataclasses.is_dataclass(target)
    options = {field.name for field in dataclasses.fields(target) if field.init}
    assert set(node) - INSTANTIATE_KEYS == options


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.rglob("*.yaml")), ids=relative)
def test_an_experiment_is_headed_by_its_command(path: Path) -> None:
    text = path.read_text()
    header = [line for line in text.splitlines() if line.startswith("#")]
    assert text.startswith("# @package _global_\n")
    assert any("python -m rl4p." in line for line in header)


def test_the_experiments_are_the_options_of_their_group() -> None:
    assert (CONF / "experiment").resolve() == EXPERIMENTS


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_a_module_has_a_test_file_of_its_own(path: Path) -> None:
    place = path.relative_to(PACKAGE)
    assert (
        path.name == "__init__.py"
        or (ROOT / "tests" / place.parent / f"test_{path.name}").is_file()
    )


def test_the_package_is_a_few_rooms_beside_its_entry_points() -> None:
    names = {path.stem for path in PACKAGE.iterdir() if path.name[0] != "_"}
    assert len(names - set(ENTRY_POINTS)) <= 16


def imports_of(source: str, modules: set[str]) -> set[str]:
    """Returns the modules that a source imports anywhere, also for type checkers only."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {x if x in modules else str(node.module) for x in members}
    return names & modules


def test_no_modules_import_one_another_in_a_circle() -> None:
    paths = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in MODULES}
    paths = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    imports = {name: imports_of(path.read_text(), set(paths)) for name, path in paths.items()}
    assert sum(map(len, imports.values())) > 2 * len(imports)
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_the_table_of_layers_is_the_house() -> None:
    """The table in CONTRIBUTING.md, the layers of import-linter and the package are the same."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = [x for x in project["tool"]["importlinter"]["contracts"] if x["type"] == "layers"]
    layers = [re.findall(r"\w+", layer) for layer in contract["layers"]]
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("| package | contents |")[2]
    rows = [line.split("|")[1] for line in section.partition("\n\n")[0].splitlines()[2:]]
    table = [re.findall(r"`(\w+)(?:/|\.py)?`", row) for row in rows]
    assert table == layers
    names = {path.stem for path in PACKAGE.iterdir() if path.name[0] != "_"}
    assert sorted(name for row in table for name in row) == sorted(names)
    assert {*table[0]} == {*ENTRY_POINTS}


def test_no_file_is_a_drawer() -> None:
    drawers = {"utils", "util", "helpers", "helper", "misc", "common"}
    assert not [relative(path) for path in MODULES if drawers & {path.stem, path.parent.name}]


def test_files_are_short() -> None:
    assert not {relative(path): lines(path) for path in MODULES if lines(path) > 500}


def test_the_loop_is_read_at_a_glance() -> None:
    assert lines(PACKAGE / "loop" / "loop.py") < 150


def test_entry_points_are_thin() -> None:
    paths = [path for path in MODULES if path.parent == PACKAGE and path.stem in ENTRY_POINTS]
    assert not {relative(path): lines(path) for path in paths if lines(path) >= 80}


def test_every_module_says_what_it_is_for() -> None:
    trees = {relative(path): ast.parse(path.read_text()) for path in MODULES}
    assert not [name for name, tree in trees.items() if not ast.get_docstring(tree)]


def test_a_public_class_has_a_name_of_its_own() -> None:
    """A class that YAML selects has the name of its option, which two groups may share."""
    options = {node.values[0]["_target_"] for node in TARGETS}
    places: dict[str, list[str]] = {}
    for path in MODULES:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.parse(path.read_text()).body:
            public = isinstance(node, ast.ClassDef) and not node.name.startswith("_")
            if public and f"{module}.{node.name}" not in options:
                places.setdefault(node.name, []).append(relative(path))
    several = {name: paths for name, paths in places.items() if len(paths) > 1}
    assert not several


def test_the_long_files_of_tests_exist() -> None:
    assert [relative(path) for path in LONG if not path.is_file()] == []


def test_no_test_file_imports_another() -> None:
    """What several of them share is in tests/support; only the environment is in a conftest."""
    allowed = re.compile(r"tests\.(support|golden|mutants|house|conftest)\b")
    wrong = []
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            if isinstance(node, ast.Constant) and isinstance(node.value, str):  # a `_target_`
                own = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                targets = re.findall(r"=(tests(?:\.\w+)*\.test_\w+)\.", node.value)
                names = [name for name in targets if name != own]
            wrong += [
                (relative(path), name)
                for name in names
                if name.startswith("tests.") and not allowed.match(name)
            ]
    assert wrong == []


def test_the_figures_of_the_house_that_hold_stay() -> None:
    figures = sizes()
    assert figures["files"] <= 420
    assert figures["modules under 100 lines with one importer"] <= 15
    assert figures["names beside the entry points"] <= 16
