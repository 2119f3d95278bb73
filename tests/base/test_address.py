"""Tests the checks of addresses and of the variable of an API key."""

import pytest

from rl4p.base.address import api_key, check_address, check_key_variable, holds_secret


@pytest.mark.parametrize("url", ["http://host", "https://host:1/v1/", "http://[::1]:8000/a?b=c"])
def test_an_address_is_accepted(url):
    check_address(url, "url", example="http://HOST:PORT")


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("localhost:8000", r"^url=localhost:8000 is not an address: write http://HOST:PORT\.$"),
        ("", "^url= is not an address"),
        ("ftp://host", "is not an address"),
        ("http://", "is not an address"),
        ("http://[::1", "is not an address"),
        ("http://host:99999", "is not an address"),
        (
            "http://me:secret@host",
            r"^url contains a user name, .* mine=NAME\.$",
        ),
        ("http://secret@host", "^url contains a user name, a password or a token"),
        ("ftp://me:secret@host", "^url=ftp://host is not an address"),
        ("me:secret@host", "^url=host is not an address"),
    ],
)
def test_another_text_is_refused_without_its_password(url, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        check_address(url, "url", example="http://HOST:PORT", key_option="mine")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("name", ["sk-123", "", "1A", "A B"])
def test_a_key_in_place_of_its_variable_is_refused_and_not_repeated(name):
    with pytest.raises(ValueError, match=r"^mine is not the name of an environment") as error:
        check_key_variable(name, "mine")
    assert "sk-123" not in str(error.value)
    check_key_variable(None)
    check_key_variable("A_KEY")


def test_the_key_is_read_from_its_variable(monkeypatch):
    monkeypatch.setenv("A_KEY", "sk-123")
    assert (api_key("A_KEY"), api_key(None)) == ("sk-123", "")
    for value in ("", None):
        monkeypatch.delenv("A_KEY", raising=False)
        if value is not None:
            monkeypatch.setenv("A_KEY", value)
        with pytest.raises(ValueError, match=r"^mine=A_KEY: this environment variable is not set"):
            api_key("A_KEY", "mine")


@pytest.mark.parametrize(
    "text",
    [
        *(
            "http://u:p@h/",
            "http://u@h",
            "https://:p@h",
            "http://h/?token=x",
            "http://h/?a=1&api_key=x",
        ),
        *(
            "http://h/#access_token=x",
            "http://h/x;password=y",
            "http://h?sig=a",
            "http://h?Authorization=b",
        ),
        *("http://h/?code=x", "postgresql://u:p@h/db", "postgresql://h/db?password=x", "//u:p@h/x"),
        *(
            "http:\\\\u:p@h",
            "http://u%3Ap@h/",
            "http://h/%3Ftoken=x",
            "ws://u@h",
            "http://h?x-secret=1",
        ),
        *(
            "mysql+pymysql://u:p@h/db",
            "key=http://u:p@h",
            "http://a.b/c?AWSAccessKeyId=x&Signature=y",
        ),
    ],
)
def test_secrets_in_addresses_are_seen(text):
    assert holds_secret(text)


@pytest.mark.parametrize(
    "text",
    [
        *("http://h:80/v1", "http://h/?model=x", "postgresql://user@h/db", "sqlite:///a@b/c.db"),
        *(
            "OWNER/NAME@main",
            "http://h/a@b",
            "http://h/token/x",
            "http://[::1]:8000/v1",
            "a: b?key=",
        ),
        *("What is https://x.org?", "sqlite:////a/b.db", "http://h/?tokens", "http://h/keys?n=3"),
    ],
)
def test_other_texts_hold_none(text):
    assert not holds_secret(text)
