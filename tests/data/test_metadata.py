from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from rl4p.data.metadata import exact_number, whole_number, whole_numbers


@pytest.mark.parametrize(
    "value",
    [
        *(22, 22.0, "22", " 22 ", "22.0", "+22", np.int64(22), np.float32(22), np.uint8(22)),
        *(Decimal("22.0"), Fraction(22), np.float64(22), "44/2"),
    ],
    ids=repr,
)
def test_a_number_in_each_form(value):
    assert whole_number(value) == 22


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, np.True_, "", "x", "22 apples", "1e5", "2_2", float("nan"), float("inf")),
        *(Decimal("nan"), "9" * 65, [22], {"a": 22}, b"22", 22j, "1/0", "1/20"),
    ],
    ids=repr,
)
def test_what_is_no_whole_number(value):
    with pytest.raises(ValueError, match="is no"):
        whole_number(value)


def test_other_numbers_are_exact():
    assert exact_number("0.1") == exact_number(0.1) == Fraction(1, 10)
    assert exact_number(np.float32(0.1)) == Fraction(1, 10)


@pytest.mark.parametrize(
    "value",
    [
        *([3, 5, 7], (3, 5, 7), [3.0, "5", 7], np.array([3, 5, 7]), np.array([3.0, 5, 7])),
        *("[3, 5, 7]", "3 5 7", "3,5,7", "(3, 5, 7)", "[3 5 7]", "[3. 5. 7.]", " 3; 5; 7 "),
    ],
    ids=repr,
)
def test_a_list_of_numbers_in_each_form(value):
    assert whole_numbers(value) == [3, 5, 7]


@pytest.mark.parametrize(
    "value",
    [None, [], "", "[]", 3, [3, None], [3, 5.5], "3 and 5", {3, 5}, {"a": 3}, b"357", [[3]]],
    ids=repr,
)
def test_what_is_no_list_of_numbers(value):
    with pytest.raises(ValueError, match="is no"):
        whole_numbers(value)
