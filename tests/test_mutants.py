"""Every mutant still applies: one that does not would no longer show that a test notices."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.mutant import ROOT, read

MUTANTS = read()


def test_there_are_many_with_names_of_their_own():
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) == len(set(names)) >= 80


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_applies_and_is_tested(mutant):
    source = (ROOT / mutant.file).read_text()
    changed = mutant.applied(source)
    if mutant.file.endswith(".py"):
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
    files = [word.partition("::")[0] for word in mutant.tests.split() if word.startswith("tests/")]
    assert files
    assert all((ROOT / file).exists() for file in files)


def test_a_mutant_is_wrong_and_not_merely_broken(tmp_path: Path):
    """A name that does not exist would be noticed by any test that passes by."""
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


def test_a_patch_that_no_longer_applies_is_named():
    mutant = MUTANTS[0]
    for source in ("", 2 * mutant.before):
        with pytest.raises(ValueError, match="does not apply: its text stands"):
            mutant.applied(source)
