import json
import os

import pytest

from rl4p.reward.sandbox_child import packed, plain, text


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 3, -(10**30), 2.5, "é\ud800", b"\x00\xff", bytearray(b"a"), 1 + 2j),
        *([1, [2, (3,)]], {"a": {1: 2}, (1, 2): None}, {1, 2}, frozenset({"x"}), [], (), {}),
    ],
    ids=repr,
)
def test_plain_values_pass_unchanged(value):
    received = plain(json.loads(json.dumps(packed(value, id))), id)
    assert received == value
    assert type(received) is type(value)


def test_a_subclass_becomes_its_plain_class_without_what_it_overrides():
    class Whole(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

        def __int__(self):
            return 9

    class Listed(list):
        def __iter__(self):
            return iter([9])

    class Known(dict):
        def items(self):
            return [(9, 9)]

    message = packed([Whole(3), Listed([1, 2]), Known(a=1)], id)
    assert plain(message, id) == [3, [1, 2], {"a": 1}]
    assert type(message["list"][0]) is int


def test_other_objects_are_held_by_number():
    value = object()
    message = packed([value, [value]], lambda held: ["number"][held is not value])
    assert message == {"list": [{"held": "number"}, {"list": [{"held": "number"}]}]}
    assert plain(message, {"number": value}.__getitem__) == [value, [value]]


def test_text_may_have_lone_surrogates(tmp_path):
    (tmp_path / "code").write_bytes("'\ud800'".encode("utf-8", "surrogatepass"))
    assert text(os.open(tmp_path / "code", os.O_RDONLY)) == "'\ud800'"
