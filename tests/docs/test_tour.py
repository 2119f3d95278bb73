"""Tests that the tour of the code names what exists, where it says."""

import ast
import re

import pytest

from tests.support.documents import DOCS, ROOT

PATTERN = r"`(\w+)`\s+in\s+\[[^\]]*\]\(\.\./([^)]+)\)"
NAMED = sorted(set(re.findall(PATTERN, (DOCS / "tour.md").read_text())))


def names_in(path):
    """Returns the classes, functions and constants that a file defines at its top level."""
    defined = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            defined.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            defined |= {target.id for target in targets if isinstance(target, ast.Name)}
    return defined


@pytest.mark.parametrize(("name", "path"), NAMED)
def test_a_name_is_defined_in_the_file_beside_it(name, path):
    assert name in names_in(path), f"docs/tour.md: {path} has no {name}"


def test_the_tour_visits_each_phase_and_each_layer_of_a_step():
    packages = {path.split("/")[1] for _, path in NAMED}
    assert packages >= {
        "configuration", "base", "data", "model", "loop", "rollout", "reward", "advantage",
        "update", "learner", "runs", "engine",
    }  # fmt: skip
    assert len(NAMED) > 35
