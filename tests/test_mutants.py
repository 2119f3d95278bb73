"""Tests that every mutant still applies; otherwise `make mutants` could not use it."""

import ast
import importlib
import re
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.mutants.mutant import ROOT, read

MUTANTS = read()


def test_they_are_at_most_300_with_names_of_their_own():
    """Each quotes a line that later changes have to renew, so that only real traps have one."""
    names = [mutant.name for mutant in MUTANTS]
    assert 200 <= len(names) == len(set(names)) <= 300


def fault(mutant) -> str | None:
    """Returns why a mutant cannot be used, or None."""
    source = (ROOT / mutant.file).read_text()
    try:
        changed = mutant.applied(source)
    except ValueError as error:
        return str(error)
    if changed == source:
        return f"{mutant.name} changes nothing."
    files = [word.partition("::")[0] for word in mutant.tests.split() if word.startswith("tests/")]
    if not files or not all((ROOT / file).exists() for file in files):
        return f"{mutant.name} names tests that there are not: {mutant.tests}."
    _, _, chosen = mutant.tests.partition(" -k ")
    words = set(re.findall(r"\w+", chosen)) - {"and", "or", "not"}
    paths = [ROOT / file for file in files if (ROOT / file).is_file()]
    text = "".join(path.read_text() for path in paths)
    if paths and words and not any(word in text for word in words):
        return f"{mutant.name} selects nothing by {chosen}."
    return None


def test_every_mutant_applies_and_is_tested():
    assert not [said for said in map(fault, MUTANTS) if said]


def test_a_mutant_that_cannot_be_used_is_named():
    """Such mutants do not apply, change nothing, or have no test."""
    good = MUTANTS[0]
    assert "its text stands 0 times" in fault(replace(good, before="nowhere"))
    assert "changes nothing" in fault(replace(good, after=good.before))
    assert "names tests that there are not" in fault(replace(good, tests="tests/nowhere.py"))
    nothing = replace(good, tests="tests/test_python.py -k nowhere")
    assert "selects nothing by" in fault(nothing)


def test_a_mutant_is_wrong_and_not_merely_broken(tmp_path: Path):
    """Any test detects an undefined name, so such a mutant would show nothing."""
    for number, mutant in enumerate(MUTANTS):
        changed = mutant.applied((ROOT / mutant.file).read_text())
        if mutant.file.endswith(".py"):
            (tmp_path / f"mutant_{number}.py").write_text(changed)
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    wrong = {
        MUTANTS[int(path.stem.removeprefix("mutant_"))].name
        for path in tmp_path.iterdir()
        if path.name in done.stdout
    }
    assert not wrong
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_imports_of_a_mutant_exist():
    """A mutant that fails to import a moved module would show nothing either."""
    importing = [mutant for mutant in MUTANTS if "import " in mutant.after]
    assert importing
    for mutant in importing:
        for node in ast.walk(ast.parse(mutant.applied((ROOT / mutant.file).read_text()))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("rl4p"):
                module = importlib.import_module(str(node.module))
                for alias in node.names:
                    name = f"{node.module}.{alias.name}"
                    assert hasattr(module, alias.name) or find_spec(name), (mutant.name, name)


def test_a_patch_that_no_longer_applies_is_named():
    mutant = MUTANTS[0]
    for source in ("", 2 * mutant.before):
        with pytest.raises(ValueError, match="does not apply: its text stands"):
            mutant.applied(source)
