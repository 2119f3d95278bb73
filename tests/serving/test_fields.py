import json

import pytest

from rl4p.serving.fields import Fields, are_tokens, parse_body
from rl4p.serving.http_errors import HttpError


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda f: f.integer("text", 1), "text must be an integer"),
        (lambda f: f.integer("flag", 1), "flag must be an integer"),
        (lambda f: f.integer("seven", 1, 8), "seven must be an integer of at least 8"),
        (lambda f: f.integer("seven", 1, 0, 6), "seven must be an integer from 0 to 6"),
        (lambda f: f.number("nan", 1.0), "nan must be a number"),
        (lambda f: f.number("text", 1.0), "text must be a number"),
        (lambda f: f.number("seven", 1.0, 0, 1), "seven must be a number from 0 to 1"),
        (lambda f: f.flag("seven", True), "seven must be true or false"),
        (lambda f: f.text("seven"), "seven must be a string"),
        (lambda f: f.text("surrogate"), "surrogate must be valid Unicode"),
        (lambda f: f.texts("seven", 2), "seven must be a string or at most 2 strings"),
        (lambda f: f.texts("list", 2), "list must be a string or at most 2 strings"),
        (lambda f: f.tokens("list", 3), "list must be a list of token ids from 0 to 2"),
        (lambda f: f.unsupported("seven", 0), "seven is not supported: leave it out"),
        (lambda f: Fields(f.take("list"), "list."), "list must be a JSON object"),
        (lambda f: Fields({"a": "b"}, "x.").integer("a", 0), "x.a must be an integer"),
    ],
)
def test_a_wrong_field_is_refused_by_name(read, message):
    fields = Fields(
        {"text": "a", "flag": True, "seven": 7, "nan": float("nan"), "list": [1, 3, 2, 5],
         "surrogate": "\ud800"}
    )  # fmt: skip
    with pytest.raises(HttpError, match=message) as error:
        read(fields)
    assert error.value.status == 400
    assert error.value.param == message.partition(" ")[0]


def test_right_fields_are_returned():
    fields = Fields({"a": 1, "b": 2, "c": False, "d": "e", "f": "g", "h": ["i"], "j": [0, 9]})
    assert fields.integer("a", 0, 0, 1) == 1
    assert fields.number("b", 0.0) == 2
    assert fields.flag("c", True) is False
    assert fields.text("d") == "e"
    assert fields.texts("f", 1) == ("g",)
    assert fields.texts("h", 1) == ("i",)
    assert fields.tokens("j", 10) == (0, 9)
    fields.end()


def test_null_counts_as_absent():
    fields = Fields({"a": None, "b": None, "c": None})
    assert fields.integer("a", 3) == 3
    assert fields.flag("b", True) is True
    fields.unsupported("c")
    fields.end()


def test_a_field_that_nothing_reads_is_refused_with_the_nearest_name():
    fields = Fields({"temprature": 1, "user": "a"})
    fields.number("temperature", 1.0)
    fields.ignore("user")
    with pytest.raises(HttpError, match=r"temprature is not a field.*temperature"):
        fields.end()


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_json_is_refused(body):
    with pytest.raises(HttpError, match="The body is not JSON"):
        parse_body(body)


def test_a_body_must_be_an_object():
    assert parse_body(b"") == {}
    with pytest.raises(HttpError, match="The body must be a JSON object"):
        Fields(parse_body(b"[1]"))


@pytest.mark.parametrize("value", ["a", [True], [1.0], [-1], [10], [0, "a"], {"a": 1}, None])
def test_what_are_no_tokens(value):
    assert not are_tokens(value, 10)
    json.dumps(value)


def test_what_are_tokens():
    assert are_tokens([0, 9], 10)
    assert are_tokens([], 10)
