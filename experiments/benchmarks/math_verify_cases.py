"""Grades the test cases of math-verify, and lists those that rl4p grades otherwise.

    pip download --no-deps --no-binary :all: math-verify && tar xzf math_verify-*.tar.gz
    python -m experiments.benchmarks.math_verify_cases math_verify-0.9.0

A case is a reference, a response and whether its answer is right. The answer of a response is its
last box, or without one its last formula, or without one the whole text: rl4p's graders do not look
for an answer that is not marked. docs/reward.md has a judgement of the differences.
"""

import importlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from rl4p.data.box import boxed
from rl4p.reward.answers import FUNCTION
from rl4p.reward.workers import Failed, Workers

FORMULA = re.compile(r"\$([^$]+)\$")
SECONDS = 5.0


def cases(folder: Path) -> Iterator[dict[str, Any]]:
    """Yields the parameters of the parametrized tests that compare a response with a reference."""
    package = ModuleType("tests")  # its files import one another as members of this package
    package.__path__ = [str(folder)]
    sys.modules["tests"] = package
    for path in sorted(folder.glob("test_*.py")):
        for name, test in vars(importlib.import_module(f"tests.{path.stem}")).items():
            for mark in getattr(test, "pytestmark", ()) if name.startswith("test") else ():
                names, rows = mark.args
                names = names.split(",") if isinstance(names, str) else names
                names = [each.strip() for each in names]
                if {"gold", "pred"} <= {*names}:
                    for row in rows:
                        values = dict(zip(names, getattr(row, "values", row), strict=True))
                        yield values | {"test": name}


def answer(text: str) -> str:
    """Returns the answer that a text states."""
    if (inside := boxed(text)) is not None:
        return inside
    formulas = FORMULA.findall(text)
    return formulas[-1] if formulas else text


def main() -> None:
    rows = [*cases(Path(sys.argv[1]) / "tests")]
    items = [{"reference": answer(x["gold"]), "answer": answer(x["pred"])} for x in rows]
    workers = Workers(FUNCTION, count=2, seconds=SECONDS)
    results = workers.map(items)
    workers.close()
    counts: Counter[str] = Counter()
    for row, item, result in zip(rows, items, results, strict=True):
        expected = bool(row.get("expected", row.get("result")))
        if isinstance(result, Failed):
            counts["not compared"] += 1
        elif result == expected:
            counts["the same"] += 1
        else:
            kind = "right here, wrong there" if result else "wrong here, right there"
            counts[kind] += 1
            print(f"{kind} | {row['test']} | {item['reference']!r} | {item['answer'][-200:]!r}")
    print(f"{len(rows)} cases: " + ", ".join(f"{n} {kind}" for kind, n in counts.items()))


if __name__ == "__main__":
    main()
