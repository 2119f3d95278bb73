from typing import Annotated, Literal

import pytest
from annotated_types import Ge, Le
from pydantic import TypeAdapter, ValidationError

from rl4p.engine.serving import body
from rl4p.engine.serving.body import (
    Body,
    HttpError,
    Must,
    encoded,
    event,
    parse,
    path_of,
    validate,
)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("Count", [0, 2**31 - 1], [-1, 2**31, 1.0, True, "1"]),
        ("PositiveCount", [1, 2**31 - 1], [0, 2**31]),
        ("Seed", [-(2**63), 2**63 - 1], [2**63, 0.5]),
        ("TopK", [-1, 2**31 - 1], [-2, 2**31]),
        ("TopP", [1, 0.5, 1e-6], [0, 1e-60, 1.5, -1, True]),
        ("Temperature", [0, 1, 1e-3, 1_000_000], [-1, 9e-4, 1_000_001, float("inf"), 10**400]),
        ("Logprobs", [0, 20], [-1, 21]),
        ("PromptLogprobs", [0], [1, -1]),
        ("Name", ["", "a" * 256], ["a" * 257, 3]),
        ("NonEmpty", ["a"], ["", 3]),
        ("One", [1, 1.0], [0, 1.5, True]),
        ("AlwaysTrue", [True], [False, "a"]),
        ("Version", ["a"], ["", "a" * 257]),
        ("Path", ["/a"], ["a" * 4097, 3]),
        ("TokenIds", [[], [0, 2**31 - 1]], [[-1], [2**31], [True], [1.0], [0, "a"], {"a": 1}]),
        ("Prompt", ["", [1], [[1], []], ["a", [1]]], [[], {}, [1, "a"], [True], [[1], [-1]], 3]),
        ("Texts", ["a", ["a"]], [[], [1], 3]),
        ("InputIds", [[], [1], [[1], [2]]], [["a"], [[1], 2], "a"]),
        ("RequestIds", ["a", ["a", "b"]], [3, ["a" * 257]]),
    ],
)
def test_the_values_of_types(name, right, wrong):
    adapter = TypeAdapter(getattr(body, name), config={"strict": True})
    for value in right:
        assert adapter.validate_python(value) == value
    for value in wrong:
        with pytest.raises(ValidationError) as error:
            adapter.validate_python(value)
        assert error.value.error_count() == 1


def test_stops_are_a_string_or_several():
    adapter = TypeAdapter(body.Stops, config={"strict": True})
    assert adapter.validate_python("a") == ("a",)
    assert adapter.validate_python(["a"] * 16) == ("a",) * 16
    for wrong in (3, [""], ["a"] * 17, ["a" * 4097], {"a": 1}):
        with pytest.raises(ValidationError, match="a string or at most 16 strings"):
            adapter.validate_python(wrong)


def test_stop_tokens_have_a_limit():
    adapter = TypeAdapter(body.StopTokens, config={"strict": True})
    assert adapter.validate_python([0] * 128) == (0,) * 128
    for wrong in (3, [0] * 129, [-1], [True]):
        with pytest.raises(ValidationError, match="a list of at most 128 token ids"):
            adapter.validate_python(wrong)


def test_a_long_wrong_list_is_read_up_to_its_first_error():
    adapter = TypeAdapter(body.TokenIds, config={"strict": True})
    with pytest.raises(ValidationError) as error:
        adapter.validate_python(["a"] * 1000)
    assert error.value.error_count() == 1


class Inner(Body):
    flag: bool = True


class Loose(Body, extra="ignore"):
    text: str = ""


class Outer(Body):
    IGNORED = ("user",)
    OFF = ("off",)

    count: Annotated[int, Ge(1), Le(8), Must()] = 2
    short: Annotated[str, Must("a short text")] = "a"
    mode: Literal["a", "b"] = "a"
    inner: Inner = Inner()
    inners: list[Inner] = [Inner()]  # noqa: RUF012 - pydantic copies it
    loose: Loose = Loose()


class Needs(Body):
    text: str


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"count": 9}, "count", "count must be an integer from 1 to 8."),
        ({"count": True}, "count", "count must be an integer from 1 to 8."),
        ({"count": "3"}, "count", "count must be an integer from 1 to 8."),
        ({"count": 3.0}, "count", "count must be an integer from 1 to 8."),
        ({"count": 10**400}, "count", "count must be an integer from 1 to 8."),
        ({"short": 3}, "short", "short must be a short text."),
        ({"mode": "c"}, "mode", "mode must be one of a, b."),
        ({"mode": {}}, "mode", "mode must be one of a, b."),
        ({"inner": 3}, "inner", "inner must be a JSON object."),
        ({"inner": {"flag": 1}}, "inner.flag", "inner.flag must be true or false."),
        ({"inner": {"flg": True}}, "inner.flg", "inner.flg is not a field of this request; did "
         "you mean flag?"),
        ({"inners": [{}, {"zz": 1}]}, "inners[1].zz", "inners[1].zz is not a field of this "
         "request: leave it out."),
        ({"inners": {}}, "inners", "inners must be a list."),
        ({"loose": {"text": 1}}, "loose.text", "loose.text must be a string."),
        ({"off": 1}, "off", "off is not supported: leave it out."),
        ({"off": "a"}, "off", "off is not supported: leave it out."),
        ([], None, "The body must be a JSON object."),
    ],
)  # fmt: skip
def test_a_wrong_field_is_refused_in_a_sentence_with_its_path(body, param, message):
    with pytest.raises(HttpError) as error:
        validate(Outer, body)
    assert (str(error.value), error.value.param, error.value.status) == (message, param, 400)


def test_right_fields_are_read_and_null_counts_as_absent():
    body = {"count": 8, "short": None, "inner": {"flag": False}, "loose": {"a": 1}, "other": None}
    outer = validate(Outer, body | {"off": {}, "user": 3})
    assert (outer.count, outer.short, outer.inner.flag) == (8, "a", False)
    assert outer.inners == [Inner()]


def test_a_missing_field_is_named():
    with pytest.raises(HttpError, match=r"^text is missing\.$") as error:
        validate(Needs, {"text": None})
    assert error.value.param == "text"


@pytest.mark.parametrize(
    "content",
    [b"{", b"\xff", b"[" * 100_000, b'{"count": NaN}', b'{"count": %s}' % (b"9" * 5000),
     b'{"short": "\\ud800"}'],
)  # fmt: skip
def test_a_body_that_is_no_json_is_refused(content):
    with pytest.raises(HttpError, match="The body is not JSON"):
        parse(Outer, content)


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b'{"text": ' + b"[]," * (2**19 + 1) + b"1}", 413),
        (b"{" + b",".join(b'"k%d":1' % i for i in range(257)) + b"}", 400),
    ],
)
def test_a_body_with_too_many_values_is_refused(content, status):
    with pytest.raises(HttpError, match=r"more than 524288 values|at most 256 fields") as error:
        parse(Needs, content)
    assert error.value.status == status


def test_an_empty_body_is_an_empty_object():
    assert parse(Outer, b"") == parse(Outer, b"{}") == Outer()


def test_paths_have_names_and_numbers():
    assert path_of(("a", 3, "b", "c")) == "a[3].b.c"
    assert path_of(()) == ""


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "not_found_error"),
        (429, "rate_limit_error"),
        (413, "invalid_request_error"),
        (503, "server_error"),
    ],
)
def test_a_refusal_has_the_shape_of_an_error_of_openai(status, kind):
    error = HttpError("No.", status=status, param="a", code="b")
    assert error.body() == {"error": {"message": "No.", "type": kind, "param": "a", "code": "b"}}


def test_json_is_short_and_an_event_holds_it():
    assert encoded({"a": [1, None], "b": "é"}) == b'{"a":[1,null],"b":"\\u00e9"}'
    assert event({"a": "x\ny"}) == b'data: {"a":"x\\ny"}\n\n'
