"""Draws faults from those that cosmic-ray makes, and runs the tests on each.

    make mutate                                              400 of four rooms
    make mutate ARGS="rl4p/update --count 50 --seed 1"       others

A mutant is tried with the test file of its module, and if that passes, with all tests of its
room. What the interpreter cannot tell from the original (a change in an annotation) is not drawn.
Survivors that were judged stand in `survivors.yaml`, by their file and changed line, with the
reason why no test should notice. Exit code 1: one survived that is not judged, or less than 90 %
were noticed.
"""

import argparse
import ast
import difflib
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import yaml
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

from tests.mutants.__main__ import NOTICED, SURVIVED, verdicts
from tests.mutants.mutant import HERE, ROOT, Mutant

ROOMS = ("rl4p/advantage", "rl4p/update", "rl4p/learner", "rl4p/loop")
LEAST = 0.9  # the share of mutants that tests should notice


class Unread(ast.NodeTransformer):
    """Removes what changes nothing when the code runs: annotations."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        self.generic_visit(node)
        return node


def meaning(source: str) -> str:
    """Returns what the interpreter does of a source, as text."""
    return ast.dump(Unread().visit(ast.parse(source)))


def changed_line(before: str, after: str) -> str:
    """Returns the first line that differs, before and after: `a -> b`."""
    lines = [
        line[1:].strip()
        for line in difflib.unified_diff(before.splitlines(), after.splitlines(), n=0)
        if line[:1] in "+-" and line[:3] not in ("---", "+++")
    ]
    return f"{lines[0]} -> {lines[-1]}"


def candidates(rooms: Sequence[str]) -> Iterator[tuple[Path, str, int]]:
    """Yields module, operator and occurrence of each fault that cosmic-ray can make."""
    for room in rooms:
        for path in sorted((ROOT / room).rglob("*.py")):
            nodes = list(ast_nodes(get_ast(path.read_text())))
            for name in operator_names():
                operator = get_operator(name)
                if operator.arguments():
                    continue
                count = sum(len(list(operator().mutation_positions(node))) for node in nodes)
                yield from ((path, name, occurrence) for occurrence in range(count))


def draw(rooms: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Returns so many mutants, drawn with equal chances, each of another meaning."""
    chosen, seen = [], set()
    drawn = list(candidates(rooms))
    random.Random(seed).shuffle(drawn)
    for path, name, occurrence in drawn:
        before = path.read_text()
        after = mutate_code(before, get_operator(name)(), occurrence)
        try:
            means = meaning(after)
        except SyntaxError:
            continue
        if means in seen or means == meaning(before):
            continue
        seen.add(means)
        file = path.relative_to(ROOT)
        test = Path("tests", *file.parts[1:-1], f"test_{file.name}")
        tests = str(test if (ROOT / test).is_file() else Path("tests", file.parts[1]))
        line = changed_line(before, after)
        chosen.append(Mutant(name=line, file=str(file), before=before, after=after, tests=tests))
        if len(chosen) == count:
            break
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.generated")
    parser.add_argument("rooms", nargs="*", default=ROOMS)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    chosen = parser.parse_args(arguments)
    mutants = draw(chosen.rooms, chosen.count, chosen.seed)
    survivors = mutants
    for tests_of_room in (False, True):
        if tests_of_room:
            survivors = [
                replace(m, tests=str(Path("tests", *Path(m.file).parts[1:2]))) for m in survivors
            ]
        got = verdicts(survivors, chosen.workers, seconds=600)
        survivors = [m for m, verdict in zip(survivors, got, strict=True) if verdict != NOTICED]
    judged = yaml.safe_load((HERE / "survivors.yaml").read_text()) or []
    fine = {(each["file"], each["line"]) for each in judged}
    unjudged = [m for m in survivors if (m.file, m.name) not in fine]
    share = 1 - len(survivors) / len(mutants)
    print(f"{share:.1%} of {len(mutants)} mutants are noticed.")
    print(*(f"  {SURVIVED}, not judged: {m.file}: {m.name}" for m in unjudged), sep="\n")
    return int(bool(unjudged) or share < LEAST)


if __name__ == "__main__":
    sys.exit(main())
