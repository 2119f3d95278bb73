import pytest

from rl4p.engine.serving.responses import HttpError, encoded, event


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
