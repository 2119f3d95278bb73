import datetime
from decimal import Decimal

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from rl4p.data.arrow import of_fields
from rl4p.data.huggingface import HuggingFace
from rl4p.data.parquet import Parquet

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
