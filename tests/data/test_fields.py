import pickle
from decimal import Decimal

import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.data.fields import (
    MISSING,
    Written,
    check_columns,
    equals,
    names_of,
    value_of,
    without_exponent,
)
from rl4p.data.json_line import parsed


def test_a_key_with_a_dot_names_a_field_inside_a_field():
    row = {"a": {"b": {"c": 1}, "d": 2}, "a.d": 3}
    assert value_of(row, "a.b.c") == 1
    assert value_of(row, "a.d") == 3  # a field of that name comes first
    for key in ("b", "a.c", "a.b.c.d", "a.d.e"):
        assert value_of(row, key) is MISSING


@pytest.mark.parametrize(
    ("value", "wanted", "equal"),
    [
        (4, 4, True),
        (4, 4.0, True),
        ("4", 4, True),  # all fields of CSV are texts
        ("four", 4, False),
        (4, "4", False),
        ("True", True, True),
        ("no", False, False),
        (1, True, False),
        (True, 1, False),
        ("algebra", "algebra", True),
        ("algebra", "a", False),
        (None, None, True),
    ],
    ids=range(12),
)
def test_the_comparison_with_wanted_values(value, wanted, equal):
    assert equals(value, wanted) is equal


@pytest.mark.parametrize(
    ("value", "digits"),
    [
        *[(42, "42"), (-0.5, "-0.5"), (1e20, "100000000000000000000"), (12.0, "12"), (-0.0, "0")],
        *[(10**40, "1" + "0" * 40), (0.1, "0.1"), (1e-7, "0.0000001"), (100.0, "100")],
        *[(Decimal("1.50"), "1.5"), (Decimal("1E+3"), "1000"), (Decimal("0.00"), "0")],
        *[(Decimal("NaN"), None), (Decimal("1e99999"), None), (float("nan"), None)],
        *[(np.float32(0.1), "0.1"), (np.float64(12.0), "12"), (np.int64(7), "7")],
        *[(np.float16(0.1), "0.1"), (np.float32("nan"), None), (np.bool_(True), None)],
        *[(float("inf"), None), (True, None), ("1", None), (None, None), (1 + 2j, None)],
    ],
    ids=range(26),
)
def test_the_digits_of_a_number(value, digits):
    assert without_exponent(value) == digits


@pytest.mark.parametrize(
    ("text", "digits"),
    [
        ("3.14159265358979323846", "3.14159265358979323846"),
        ("0.1234567890123456789", "0.1234567890123456789"),
        ("1.0000000000000000001e3", "1000.0000000000000001"),
        ("1e400", "1" + "0" * 400),
        ("1e-400", "0." + "0" * 399 + "1"),
        ("0.10", "0.1"),
        ("1e3", "1000"),
        ("12.0", "12"),
        ("1e99999", None),
    ],
)
def test_a_number_keeps_the_digits_that_a_float_has_not(text, digits):
    number = Written.read(text)
    assert isinstance(number, float)
    assert number == float(text)
    assert without_exponent(number) == digits
    assert without_exponent(pickle.loads(pickle.dumps(number))) == digits
    row = parsed(b'{"answer": %s}' % text.encode(), "f")
    assert without_exponent(row["answer"]) == digits


def test_columns_are_named_once_and_absent_ones_are_refused():
    assert check_columns(["a", "b.c", "b.d", "e.f"], ["e.f", "b", "a", "x"], "f") == [
        "a",
        "b",
        "e.f",
    ]
    with pytest.raises(InputError, match=r"f: no column \"c\"; the columns are \['a', 'b'\]"):
        check_columns(["a", "c.d"], ["a", "b"], "f")


def test_fields_in_words():
    assert names_of({"b": 1, "a": 2}) == "the row has the fields ['a', 'b']"
