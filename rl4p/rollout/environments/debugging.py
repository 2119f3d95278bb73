"""A function with a fault, which the policy tests and repairs (`environment=tool_object`)."""

import ast
import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any

from rl4p.base.types import Episode, Prompt
from rl4p.protocols.reward import RewardTerm

PAIRS = ((ast.Add, ast.Sub), (ast.Mult, ast.Add), (ast.Div, ast.Mult), (ast.Mod, ast.FloorDiv))
PAIRS += ((ast.And, ast.Or), (ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq))
OTHER: dict[type, type] = {b: a for a, b in PAIRS} | dict(PAIRS)  # the other operator

LOST = "the tests could not be run"


class Debugging:
    """Tools that run the tests of a function with a fault, and submit its repair.

    The rows have `tests` and maybe `setup`, as those of `data=code`, and as `broken` code with a
    fault. A row without `broken` has right code as its answer; the first fault that the tests
    detect is put into it: another operator, or a whole number that is larger by one.

    The reward is 1 for a submission that passes all tests, else 0. The episode ends with it.

    Args:
      grader: the reward term that runs tests: `term=code`.
    """

    def __init__(self, grader: RewardTerm) -> None:
        self.grader, self.tests, self.setup = grader, list[Any](), ""
        self.reward, self.done = 0.0, False
        self.lost = False  # whether the tests could once not be run: the sample is then invalid

    def reset(
        self, tests: Sequence[Any], answer: str = "", setup: str = "", broken: str = ""
    ) -> str:
        self.tests, self.setup = list(tests), setup
        if not broken:
            _, fence, rest = answer.partition("```python\n")
            code = rest.partition("```")[0] if fence else answer
            for changed in faults(code):  # until the tests detect one
                if self._passed(changed, [self.tests]) == [False]:
                    broken = changed
                    break
            else:
                raise ValueError(
                    "the tests detect no fault in the answer: give the row a field `broken`"
                )
        return f"\nThis attempt fails some tests:\n```python\n{broken.strip()}\n```"

    def run_tests(self, code: str) -> str:
        """Runs the tests with a version of the code, and shows one that fails.

        Args:
          code: the whole code.
        """
        tests = self.tests
        passed = self._passed(code, [[test] for test in tests])
        counts = f"{sum(passed)} of {len(passed)} tests pass."
        return counts if all(passed) else f"{counts} Failed: {tests[passed.index(False)]}"

    def submit(self, code: str) -> str:
        """Submits the repaired code, which ends the task.

        Args:
          code: the whole code.
        """
        (right,) = self._passed(code, [self.tests])
        self.reward, self.done = float(right), True
        return "Submitted."

    def get_reward(self) -> float:
        if self.lost:
            raise RuntimeError(LOST)
        return self.reward

    def _passed(self, code: str, parts: Sequence[Sequence[Any]]) -> list[bool]:
        """Returns for each part of the tests whether code passes all of it.

        Raises:
          RuntimeError: the tests could not be run.
        """
        row = {"id": "", "question": "", "answer": "", "task": "debugging", "tokens": ()}
        rows = [Prompt(**row, metadata={"tests": x, "setup": self.setup}) for x in parts]
        block = f"```python\n{code}\n```"
        grades: Any = self.grader([Episode(prompt=each, response=block) for each in rows])
        if any(grade is None or math.isnan(grade) for grade in grades):
            self.lost = True
            raise RuntimeError(LOST)
        return [grade == 1 for grade in grades]


def faults(code: str) -> Iterator[str]:
    """Yields versions of code with one change each.

    Raises:
      SyntaxError: the code is no Python.
    """
    tree = ast.parse(code)
    for number in range(sum(1 for _ in ast.walk(tree))):
        changed = copy.deepcopy(tree)
        if change(list(ast.walk(changed))[number]):
            yield ast.unparse(changed)


def change(node: ast.AST) -> bool:
    """Changes a node of a syntax tree; returns whether it can be changed."""
    match node:
        case ast.BinOp() | ast.BoolOp() if type(node.op) in OTHER:
            node.op = OTHER[type(node.op)]()
        case ast.Compare() if type(node.ops[0]) in OTHER:
            node.ops[0] = OTHER[type(node.ops[0])]()
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            node.value = value + 1
        case _:
            return False
    return True
