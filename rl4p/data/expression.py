"""Arithmetic expressions such as ``(3+5)*2``: parsed without `eval`, and evaluated exactly."""

import re
from dataclasses import dataclass
from fractions import Fraction

LONGEST = 200  # characters, which also bounds the depth and the size of the value
TOKEN = re.compile(r" *([0-9]{1,9}(?![0-9])|[-+*/()])")
SIGNS = str.maketrans(
    {"\u2212": "-", "\u2013": "-", "\u00d7": "*", "\u00b7": "*", "\u00f7": "/", "[": "(", "]": ")"}
)
MULTIPLY, ADD = "*/", "+-"


@dataclass(frozen=True, kw_only=True)
class Expression:
    """An expression of whole numbers with + - * / and parentheses.

    Attributes:
      numbers: the numbers as they stand from left to right.
      value: the exact value.
    """

    numbers: tuple[int, ...]
    value: Fraction


def parse(text: str) -> Expression | None:
    """Parses a text; returns None if it is not an expression.

    The grammar has binary operators only: no signs, no powers, no products without an operator, and
    at most 9 digits to a number. Spaces may stand between numbers and operators; ``x`` is no
    operator, but the Unicode signs of multiplication and division are. None is also returned for a
    division by zero and for texts over 200 characters.
    """
    tokens = tokens_of(text)
    if tokens is None:
        return None
    numbers: list[int] = []
    values: list[Fraction] = []
    operators: list[str] = []

    def apply_while(precedence: str) -> None:
        """Applies the operators on top that bind at least as strongly (`precedence` lists them)."""
        while operators and operators[-1] in precedence:
            right, left = values.pop(), values.pop()
            values.append(applied(operators.pop(), left, right))

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


def tokens_of(text: str) -> list[str] | None:
    """Returns the numbers, operators and parentheses of a text; None if it has anything else."""
    text = text.strip().translate(SIGNS)
    if len(text) > LONGEST:
        return None
    tokens, start = [], 0
    while start < len(text):
        match = TOKEN.match(text, start)
        if match is None:
            return None
        tokens.append(match[1])
        start = match.end()
    return tokens or None


def applied(operator: str, left: Fraction, right: Fraction) -> Fraction:
    """Returns left (operator) right."""
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    return left * right if operator == "*" else left / right
