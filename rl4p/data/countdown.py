"""A synthetic task: a target that an expression of given numbers has to make.

Expressions such as ``(3+5)*2`` are parsed without `eval`, and evaluated exactly.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from operator import add, mul, sub, truediv
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from rl4p.base.types import Question
from rl4p.configuration.bounds import Positive
from rl4p.data.fields import exact_number, whole_numbers
from rl4p.data.synthetic import RandomQuestions, worked_question

LONGEST = 200  # characters, which also bounds the depth and the size of the value
TOKEN = re.compile(r" *([0-9]{1,9}(?![0-9])|[-+*/()])")
SIGNS = str.maketrans(
    {"\u2212": "-", "\u2013": "-", "\u00d7": "*", "\u00b7": "*", "\u00f7": "/", "[": "(", "]": ")"}
)
MULTIPLY, ADD = "*/", "+-"
OPERATIONS = {"+": add, "-": sub, "*": mul, "/": truediv}
PRECEDENCE = {"": 2, "*": 1, "/": 1, "+": 0, "-": 0}  # "": a number


@dataclass(frozen=True, kw_only=True)
class Expression:
    """An expression of whole numbers with + - * / and parentheses."""

    numbers: tuple[int, ...]  # the numbers as they stand from left to right
    value: Fraction  # the exact value


def parse(text: str) -> Expression | None:
    """Parses a text; returns None if it is not an expression.

    The grammar has binary operators only: no signs, no powers, no products without an operator, and
    at most 9 digits to a number. Spaces may stand between numbers and operators; ``x`` is no
    operator, but the Unicode signs of multiplication and division are. None is also returned for a
    division by zero and for texts over 200 characters.
    """
    text, tokens, start = text.strip().translate(SIGNS), list[str](), 0
    while start < len(text):
        match = TOKEN.match(text, start)
        if match is None or len(text) > LONGEST:
            return None
        tokens.append(match[1])
        start = match.end()
    numbers: list[int] = []
    values: list[Fraction] = []
    operators: list[str] = []

    def apply_while(precedence: str) -> None:
        """Applies the operators on top that bind at least as strongly (`precedence` lists them)."""
        while operators and operators[-1] in precedence:
            right, left = values.pop(), values.pop()
            values.append(OPERATIONS[operators.pop()](left, right))

    number_is_next = True
    try:
        for token in tokens:
            if number_is_next:
                if token.isdigit():
                    numbers.append(int(token))
                    values.append(Fraction(int(token)))
                    number_is_next = False
                elif token == "(":
                    operators.append(token)
                else:
                    return None
            elif token == ")":
                apply_while(MULTIPLY + ADD)
                if not operators:
                    return None
                operators.pop()
            elif token in MULTIPLY + ADD:
                apply_while(MULTIPLY if token in MULTIPLY else MULTIPLY + ADD)
                operators.append(token)
                number_is_next = True
            else:
                return None
        if number_is_next:
            return None
        apply_while(MULTIPLY + ADD)
    except ZeroDivisionError:
        return None
    if operators:  # a parenthesis that is not closed
        return None
    return Expression(numbers=tuple(numbers), value=values[0])


@dataclass(frozen=True, kw_only=True)
class Countdown(RandomQuestions):
    """A data set of puzzles such as `3 5 7 = 22`: make the target from all of the numbers.

    An answer is an expression with + - * / and parentheses that has each number as often as it is
    given, and the target as its exact value, such as `3*5+7`. The reward term `countdown` grades
    it; there may be several right answers, and `answer` is one of them.

    Numbers and expressions are random. A question is kept if its target is a whole number from 1
    to `largest_target`. Two questions never have the same numbers and target, and so no held-out
    question is trained on. `Synthetic` explains the other options.

    A worked solution has one operation after the other, `3*5=15 15+7=22`, and then the expression:
    `3*5=15 15+7=22 #### 3*5+7`.

    Attributes:
      numbers: how many numbers a question has.
      smallest, largest: the limits of the numbers.
      largest_target: the limit of the targets; their smallest is 1.
      operators: the operators of the hidden expressions; an answer may use all four.
    """

    numbers: Annotated[int, Ge(2), Le(8)] = 3
    smallest: Positive = 1
    largest: Annotated[int, Ge(1), Le(1000)] = 20
    largest_target: Positive = 99
    operators: str = "+-*"

    def __post_init__(self) -> None:
        if self.smallest > self.largest:
            raise ValueError(
                f"smallest={self.smallest} is more than largest={self.largest}: write a smaller one"
                " for smallest."
            )
        allowed = set(self.operators) & OPERATIONS.keys()
        if not self.operators or len(allowed) < len(self.operators):
            raise ValueError(
                f"operators={self.operators!r} must be some of the characters "
                f"{''.join(OPERATIONS)}, each once: write '+-*'."
            )

    def draw(self, random: np.random.Generator) -> Question | None:
        """Joins two neighbouring results at a time, so the expression has the numbers as drawn."""
        numbers = random.integers(self.smallest, self.largest + 1, self.numbers).tolist()
        texts = list(map(str, numbers))
        values = list(map(Fraction, numbers))
        outer = [""] * len(numbers)  # the last operator of each text
        steps: list[str] = []
        while len(values) > 1:
            at = int(random.integers(len(values) - 1))
            operator = str(random.choice(list(self.operators)))
            result = OPERATIONS[operator](values[at], values[at + 1])
            if result <= 0 or result.denominator != 1:
                return None
            steps.append(f"{values[at]}{operator}{values[at + 1]}={result}")
            # An operand has parentheses if its own operator would otherwise be applied later. On
            # the right of - and /, an operator of the same precedence would be applied first.
            for side in (at, at + 1):
                own, other = PRECEDENCE[outer[side]], PRECEDENCE[operator]
                if own < other or (own == other and side > at and operator in "-/"):
                    texts[side] = f"({texts[side]})"
            texts[at : at + 2] = [f"{texts[at]}{operator}{texts[at + 1]}"]
            values[at : at + 2], outer[at : at + 2] = [result], [operator]
        if values[0] > self.largest_target:
            return None
        question = f"{' '.join(map(str, sorted(numbers)))} = {values[0]}"
        metadata = {"numbers": sorted(numbers), "target": int(values[0])}
        solution = f"{' '.join(steps)} #### {texts[0]}"
        return worked_question("countdown", question, texts[0], solution, metadata=metadata)


def solves(text: str, reference: str, metadata: Mapping[str, object]) -> tuple[bool, bool]:
    """Returns whether an expression has the right numbers, and whether it is a right answer too.

    `metadata` gives the numbers (`numbers` or `nums`) and the target (`target`). What it lacks is
    read from the reference, if that is an expression of several numbers. A text may end with `=`
    and the target.

    Raises:
      ValueError: the numbers or the target are not known, or not readable; says why.
    """
    lists = [
        sorted(whole_numbers(metadata[key]))
        for key in ("numbers", "nums")
        if metadata.get(key) is not None
    ]
    target = metadata.get("target")
    worked = parse(reference)
    if worked is not None and len(worked.numbers) < 2:
        worked = None  # the target alone
    if not lists or target is None:
        if worked is None:
            missing = "target" if lists else "numbers"
            raise ValueError(f"the metadata has no {missing}, and the answer is no expression")
        lists.append(sorted(worked.numbers))
        target = worked.value if target is None else target
        if exact_number(target) != worked.value:
            raise ValueError(f"the answer {reference!r:.80} does not make the target {target!r}")
    if any(each != lists[0] for each in lists):
        raise ValueError(f"there are other numbers, {lists[1]}, beside {lists[0]}")
    value = exact_number(target)

    left, equals, right = text.partition("=")
    expression = parse(left)
    if expression is None or sorted(expression.numbers) != lists[0]:
        return False, False
    claimed = parse(right) if equals else expression
    return True, expression.value == value and claimed is not None and claimed.value == value
