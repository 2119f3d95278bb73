"""Tests which bounds of a range are allowed, as the configuration checks them."""

import math
from typing import Annotated, get_origin

import pytest
from pydantic import TypeAdapter, ValidationError

from rl4p.base.errors import InputError
from rl4p.configuration import bounds
from rl4p.configuration.targets import check_nodes

INSIDE = {
    "Natural": (0, 1, 10**9),
    "Positive": (1, 10**9),
    "Finite": (-1e9, 0.0, 1e9),
    "NonNegative": (0.0, 1e-9, 1e9),
    "AboveZero": (1e-9, 1.0, 1e9),
    "AboveOne": (1 + 1e-9, 1e9),
    "Share": (0.0, 0.5, 1.0),
    "TopShare": (1e-9, 0.5, 1.0),
    "Port": (0, 65535),
}
OUTSIDE = {
    "Natural": (-1, 0.5),
    "Positive": (0, -1, 1.5),
    "Finite": (-math.inf, math.inf, math.nan),
    "NonNegative": (-1e-9, math.inf, math.nan),
    "AboveZero": (0.0, -1.0, math.inf, math.nan),
    "AboveOne": (1.0, 0.5, math.inf, math.nan),
    "Share": (-1e-9, 1 + 1e-9, math.nan),
    "TopShare": (0.0, -0.5, 1 + 1e-9, math.nan),
    "Port": (-1, 65536, 0.5),
}


def cases(table):
    return [(name, number) for name, numbers in table.items() for number in numbers]


def test_every_range_is_in_the_tables():
    ranges = {name for name, hint in vars(bounds).items() if get_origin(hint) is Annotated}
    assert ranges == INSIDE.keys() == OUTSIDE.keys()


@pytest.mark.parametrize(("name", "number"), cases(INSIDE))
def test_what_is_inside_is_taken_as_it_is(name, number):
    assert TypeAdapter(getattr(bounds, name)).validate_python(number) == number


@pytest.mark.parametrize(("name", "number"), cases(OUTSIDE))
def test_what_is_outside_is_refused(name, number):
    with pytest.raises(ValidationError):
        TypeAdapter(getattr(bounds, name)).validate_python(number)


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (math.inf, "must be a finite number, not inf."),
        (0.0, "must be greater than 0, not 0.0."),
    ],
)
def test_the_configuration_names_the_key_and_what_would_be_right(number, sentence):
    node = {"_target_": "rl4p.update.m2po.M2PO", "threshold": number}
    with pytest.raises(InputError) as refused:
        check_nodes("update", node, ["rl4p"], {})
    assert str(refused.value) == f"update.threshold {sentence}"
