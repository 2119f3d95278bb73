"""Tests the fields of rows: their lookup, their numbers, and the values of Arrow columns."""

import datetime
import pickle
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from rl4p.base.errors import InputError
from rl4p.data.fields import (
    MISSING,
    Written,
    check_columns,
    equals,
    exact_number,
    names_of,
    of_fields,
    value_of,
    whole_number,
    whole_numbers,
    without_exponent,
)
from rl4p.data.files import Parquet, parse_line
from rl4p.data.huggingface import HuggingFace


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
    row = parse_line(b'{"answer": %s}' % text.encode(), "f")
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


NUMBERS = [0.1, 3.14159, 1e-7, 123456.79, 2.0, -0.3, 16777216.0]
DIGITS = ["0.1", "3.14159", "0.0000001", "123456.79", "2", "-0.3", "16777216"]


def read(kind, array, tmp_path, **options):
    """Returns the reference answers of a column, read as Parquet or as a data set."""
    table = pyarrow.table({"question": [f"q{i}" for i in range(len(array))], "n": array})
    options = {"reference_key": "n", "answer_key": None, "held_out_size": 1} | options
    if kind == "parquet":
        parquet.write_table(table, tmp_path / "rows.parquet")
        data = Parquet(path=str(tmp_path / "rows.parquet"), **options)
    else:
        datasets = pytest.importorskip("datasets")
        datasets.Dataset(table).save_to_disk(tmp_path / "saved")
        data = HuggingFace(path=str(tmp_path / "saved"), **options)
    return {q.question: q for q in (*data.train(), *data.held_out())}


@pytest.mark.parametrize("kind", ["parquet", "datasets"])
@pytest.mark.parametrize(
    ("array", "digits"),
    [
        (pyarrow.array(NUMBERS, pyarrow.float32()), DIGITS),
        (pyarrow.array(NUMBERS, pyarrow.float64()), DIGITS),
        (pyarrow.array(np.float16([0.1, 2.5, 3.0])), ["0.1", "2.5", "3"]),
        (pyarrow.array([1, None, 2**53], pyarrow.int64()).drop_null(), ["1", "9007199254740992"]),
        (pyarrow.array([2**64 - 1, 0], pyarrow.uint64()), ["18446744073709551615", "0"]),
        (pyarrow.array([1.0, 12.0, -7.0]), ["1", "12", "-7"]),  # integers beside missing values
        (
            pyarrow.array([Decimal("1.50"), Decimal("12.00"), Decimal("-0.05")]),
            ["1.5", "12", "-0.05"],
        ),
        (
            pyarrow.array([Decimal("12345678901234567890123456789012345.1"), Decimal(2)]),
            ["12345678901234567890123456789012345.1", "2"],
        ),
        (pyarrow.array(["0755", "12:30", "NO"]), ["0755", "12:30", "NO"]),
        (pyarrow.array(["0755", "1.50"]).dictionary_encode(), ["0755", "1.50"]),
    ],
    ids=range(10),
)
def test_a_number_has_the_digits_of_its_column(kind, array, digits, tmp_path):
    rows = read(kind, array, tmp_path)
    assert [rows[f"q{i}"].answer for i in range(len(digits))] == digits


@pytest.mark.parametrize("kind", ["parquet", "datasets"])
def test_numbers_inside_of_structs_and_lists(kind, tmp_path):
    inner = pyarrow.struct({"x": pyarrow.float32(), "many": pyarrow.list_(pyarrow.float32())})
    values = [{"x": 0.1, "many": [0.2, None]}, {"x": None, "many": None}, None, {"x": 0.7}]
    options = {"reference_key": "question", "metadata_keys": ("n",)}
    rows = read(kind, pyarrow.array(values, inner), tmp_path, **options)
    assert rows["q0"].metadata["n"] == values[0]
    assert rows["q1"].metadata["n"] == values[1]
    assert rows["q2"].metadata["n"] is None
    assert rows["q3"].metadata["n"]["x"] == 0.7


@pytest.mark.parametrize(
    ("array", "wanted"),
    [
        (pyarrow.array([0.1, 0.2], pyarrow.float32()), 0.1),
        (pyarrow.array([Decimal("0.10"), Decimal("0.20")]), 0.1),
        (pyarrow.array([Decimal(3), Decimal(4)]), 3),
        (pyarrow.array([datetime.date(2026, 1, 5), datetime.date(2026, 1, 6)]), "2026-01-05"),
        (pyarrow.array([datetime.datetime(2026, 1, 5), None]), "2026-01-05 00:00:00"),
        (pyarrow.array([datetime.datetime(2026, 1, 5, 7), None]), "2026-01-05T07:00:00"),
        (pyarrow.array(["NO", "SE"]), "NO"),
        (pyarrow.array([True, False]), True),
        (pyarrow.array([None, "SE"]), None),
    ],
    ids=range(9),
)
def test_where_compares_the_values_of_every_type(array, wanted, tmp_path):
    options = {"reference_key": "question", "where": {"n": wanted}, "held_out_size": None}
    path = tmp_path / "rows.parquet"
    options |= {"held_out_path": str(path)}
    assert list(read("parquet", array, tmp_path, **options)) == ["q0"]


def test_types_without_short_floats_need_no_conversion():
    kinds = [pyarrow.float64(), pyarrow.int8(), pyarrow.string(), pyarrow.list_(pyarrow.int8())]
    assert of_fields({str(i): kind for i, kind in enumerate(kinds)}) is None
    pairs = of_fields({"m": pyarrow.map_(pyarrow.string(), pyarrow.float32())})
    assert pairs is not None
    assert pairs({"m": [("a", float(np.float32(0.1))), ("b", None)]}) == {
        "m": [("a", 0.1), ("b", None)]
    }
