"""Tests that a line is a JSON object, or is refused in one sentence that names its place."""

import pytest

from rl4p.base.errors import InputError
from rl4p.data.json_line import parsed


def test_an_object_is_read_also_after_a_byte_order_mark():
    assert parsed(b"\xef\xbb\xbf" + b'{"a": [1, null]}', "here") == {"a": [1, None]}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"\xff", "here: not UTF-8."),
        (b"", "here: not JSON (Expecting value)."),
        (b"[1]", "here: a JSON object is expected, not list."),
        (b"[" * 10**5, "here: not JSON (maximum recursion depth exceeded"),
        (b'{"a": ' + b"9" * 5000 + b"}", "here: not JSON (Exceeds the limit (4300 digits)"),
    ],
    ids=range(5),
)
def test_anything_else_is_refused(line, said):
    with pytest.raises(InputError) as error:
        parsed(line, "here")
    assert str(error.value).startswith(said)
