"""Questions with unit tests, from a file of JSON lines or generated."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

from rl4p.base.errors import InputError
from rl4p.base.types import Question
from rl4p.configuration.capability import ReadPath
from rl4p.data.fields import MISSING, names_of, value_of
from rl4p.data.files import JSONLines

GENERATED = "the generated questions"
NUMBERS = range(2, 22)
ARGUMENTS = (-7, 0, 1, 12)
FORMS: dict[str, Callable[[int, int, int], int]] = {
    "{a}*x + {b}": lambda x, a, b: a * x + b,
    "(x - {a})*{b}": lambda x, a, b: (x - a) * b,
    "x*x - {a}*x + {b}": lambda x, a, b: x * x - a * x + b,
}


@dataclass(frozen=True, kw_only=True)
class Code(JSONLines):
    """A file with one JSON object per line: a question, and the tests that an answer must pass.

        {"question": "Write f(x), the square of x.", "tests": ["assert f(3) == 9"]}

    The reward term `code` (`rl4p.reward.code`) describes the tests and the set-up, and reads them
    from the metadata. A row may have a worked answer, which supervised training needs.

    Without a file, there are 1,200 generated questions, such as "Write a Python function f(x) that
    returns 3*x + 2.", enough to try a recipe. `Rows` and `Files` explain the other options.

    Attributes:
      path: the file to train on; None uses the generated questions.
      answer_key: the field with the worked answer, which a row may lack. All of it is the
        reference answer.
      tests_key: the field with the tests: Python strings, or objects with `input` and `output`.
      setup_key: the field with Python code that runs before each test. A row may lack it.
    """

    path: ReadPath | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    tests_key: str = "tests"
    setup_key: str = "setup"
    task: str = "code"

    def origin(self, key: str) -> str:
        return GENERATED if getattr(self, key) is None else super().origin(key)

    def table(self, key: str) -> Iterator[tuple[str, Any]]:
        return generated() if getattr(self, key) is None else super().table(key)

    @cached_property
    def without_answers(self) -> "Code":
        return replace(self, answer_key=None)

    def question(self, row: Any, place: str) -> Question:
        """Returns the question of a row, with its tests and its set-up in the metadata."""
        if self.answer_key is not None and value_of(row, self.answer_key) in (MISSING, None):
            return self.without_answers.question(row, place)
        question = super().question(row, place)
        tests, setup = value_of(row, self.tests_key), value_of(row, self.setup_key)
        if not are_tests(tests):
            raise InputError(
                f'{place}: no tests under "{self.tests_key}": write a list of Python strings, or '
                f'of {{"input": ..., "output": ...}} with two strings ({names_of(row)}).'
            )
        setup = "" if setup in (MISSING, None) else setup
        if not isinstance(setup, str):
            raise InputError(f'{place}: no text under "{self.setup_key}": write Python code.')
        # The worked answer is code, whose comments may begin with ####. `Rows` would read a final
        # answer there.
        answer = question.answer
        if self.reference_key is None:
            answer = (question.solution or "").strip()
        return replace(
            question, answer=answer, metadata={**question.metadata, "tests": tests, "setup": setup}
        )


def are_tests(tests: Any) -> bool:
    """Returns whether a value is a list of tests of one kind, and has any."""
    if not isinstance(tests, Sequence) or isinstance(tests, str) or not tests:
        return False
    calls = all(isinstance(each, str) for each in tests)
    return calls or all(
        isinstance(each, Mapping)
        and set(each) == {"input", "output"}
        and all(isinstance(text, str) for text in each.values())
        for each in tests
    )


def generated() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the generated rows, each after its place in words."""
    for number, (a, b, form) in enumerate(product(NUMBERS, NUMBERS, FORMS), 1):
        returned = form.format(a=a, b=b)
        yield (
            f"{GENERATED}, number {number}",
            {
                "question": f"Write a Python function f(x) that returns {returned}.",
                "answer": f"```python\ndef f(x):\n    return {returned}\n```",
                "tests": [f"assert f({x}) == {FORMS[form](x, a, b)}" for x in ARGUMENTS],
            },
        )
