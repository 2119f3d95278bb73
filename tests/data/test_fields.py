import pytest

from rl4p.data.fields import (
    MISSING,
    check_columns,
    equals_any,
    names_of,
    value_of,
    without_exponent,
)
from rl4p.errors import InputError


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
        (4, (3, 4), True),
        (4, [3, 5], False),
        (4, [], False),
        ("4", 4, True),  # all fields of CSV are texts
        ("4", (5, 4), True),
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
    ids=range(16),
)
def test_the_comparison_with_wanted_values(value, wanted, equal):
    assert equals_any(value, wanted) is equal


@pytest.mark.parametrize(
    ("value", "digits"),
    [
        (42, "42"),
        (-0.5, "-0.5"),
        (1e20, "100000000000000000000"),
        (float("nan"), None),
        (float("inf"), None),
        (True, None),
        ("1", None),
    ],
    ids=range(7),
)
def test_the_digits_of_a_number(value, digits):
    assert without_exponent(value) == digits


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
