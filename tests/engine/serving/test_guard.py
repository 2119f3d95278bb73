import pytest

from rl4p.engine.serving.guard import Guard
from rl4p.engine.serving.http_errors import HttpError


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({b"host": b"127.0.0.1:8000"}, None),
        ({b"host": b"localhost"}, None),
        ({b"host": b"[::1]:8000"}, None),
        ({b"host": b"evil.example:8000"}, 403),
        ({b"host": b"["}, 403),
        ({}, 403),
        ({b"host": b"localhost:1", b"origin": b"http://localhost:1"}, None),
        ({b"host": b"localhost:1", b"origin": b"http://localhost:2"}, 403),
        ({b"host": b"localhost:1", b"origin": b"https://evil.example"}, 403),
        ({b"host": b"localhost:1", b"origin": b"null"}, 403),
    ],
)
def test_without_a_token_only_this_machine_is_served(headers, status):
    check(Guard(token=None), "/generate", headers, status)


@pytest.mark.parametrize(
    ("path", "given", "status"),
    [
        ("/generate", b"Bearer secret", None),
        ("/generate", b"bearer secret", None),
        ("/generate", b"Bearer wrong", 401),
        ("/generate", b"Basic secret", 401),
        ("/generate", b"secret", 401),
        ("/generate", b"", 401),
        ("/", b"", 401),
        ("/health", b"", None),
    ],
)
def test_with_a_token_it_is_needed_everywhere_but_for_health(path, given, status):
    headers = {b"host": b"any.example", b"authorization": given}
    check(Guard(token="secret"), path, headers, status)


def check(guard, path, headers, status):
    if status is None:
        guard.check(path, headers)
        return
    with pytest.raises(HttpError) as error:
        guard.check(path, headers)
    assert error.value.status == status
    assert "secret" not in str(error.value)
