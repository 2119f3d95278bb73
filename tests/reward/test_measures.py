"""Compares answers with words behind their numbers, by a table of pairs."""

import json
from pathlib import Path

import pytest

from rl4p.reward.equivalence import equal

# Each line has a reference, answers that are equal to it by mathematics, and others.
LINES = Path(__file__).with_name("measures.jsonl").read_text().splitlines()
TABLE = [
    (line["reference"], answer, kind == "equal")
    for line in map(json.loads, LINES)
    for kind in ("equal", "other")
    for answer in line[kind]
]


@pytest.mark.parametrize(("reference", "answer", "right"), TABLE)
def test_a_pair_is_judged_as_mathematics_does(reference, answer, right):
    assert equal(reference, answer) is right


def test_the_table_is_long_enough_to_tell():
    assert len(TABLE) >= 300
    assert len(set(TABLE)) == len(TABLE)
