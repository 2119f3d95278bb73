"""The fields of a request: each is read once with its type and range, and none is left over."""

import json
import math
from collections.abc import Sequence
from typing import Any

from rl4p.configuration.targets import did_you_mean
from rl4p.serving.http_errors import HttpError


def parse_body(content: bytes) -> Any:
    """Returns the JSON value of a body; an empty body is an empty object."""
    if not content:
        return {}
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise HttpError(f"The body is not JSON: {error}.") from None


class Fields:
    """The fields of a JSON object. A field that is null counts as absent.

    Args:
      body: the object.
      prefix: what stands before the names of the fields in messages, such as `stream_options.`.
    """

    def __init__(self, body: Any, prefix: str = "") -> None:
        if type(body) is not dict:
            what = f"{prefix.rstrip('.')} must be" if prefix else "The body must be"
            raise HttpError(f"{what} a JSON object.", param=prefix.rstrip(".") or None)
        self.prefix = prefix
        self.left = {name: value for name, value in body.items() if value is not None}
        self.read: set[str] = set()

    def take(self, name: str, default: Any = None) -> Any:
        """Returns a field of any type."""
        self.read.add(name)
        return self.left.pop(name, default)

    def wrong(self, name: str, must: str) -> HttpError:
        return HttpError(f"{self.prefix}{name} must be {must}.", param=self.prefix + name)

    def integer(
        self, name: str, default: Any, least: int | None = None, most: int | None = None
    ) -> Any:
        value = self.take(name)
        if value is None:
            return default
        if type(value) is not int or not within(value, least, most):
            raise self.wrong(name, f"an integer{limits(least, most)}")
        return value

    def number(
        self, name: str, default: float, least: float | None = None, most: float | None = None
    ) -> float:
        value = self.take(name)
        if value is None:
            return default
        if type(value) not in (int, float) or not within(value, least, most):
            raise self.wrong(name, f"a number{limits(least, most)}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.take(name, default)
        if type(value) is not bool:
            raise self.wrong(name, "true or false")
        return value

    def text(self, name: str, default: Any = None) -> Any:
        value = self.take(name, default)
        if value is not default and type(value) is not str:
            raise self.wrong(name, "a string")
        return value if value is default else self.valid(name, value)

    def valid(self, name: str, value: str) -> str:
        """Returns a text that UTF-8 can encode; JSON allows others."""
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self.wrong(name, "valid Unicode, without lone surrogates") from None
        return value

    def texts(self, name: str, most: int) -> tuple[str, ...]:
        """Returns a field that is a text or a list of texts, none of them empty."""
        value = self.take(name, [])
        value = [value] if type(value) is str else value
        if type(value) is not list or len(value) > most or not all_texts(value):
            raise self.wrong(name, f"a string or at most {most} strings, none of them empty")
        return tuple(self.valid(name, each) for each in value)

    def tokens(self, name: str, vocabulary: int) -> tuple[int, ...]:
        """Returns a field that is a list of token ids."""
        value = self.take(name, [])
        if not are_tokens(value, vocabulary):
            raise self.wrong(name, f"a list of token ids from 0 to {vocabulary - 1}")
        return tuple(value)

    def unsupported(self, name: str, *same: Any) -> None:
        """Refuses a field unless its value is one of `same`, which change nothing."""
        value = self.take(name)
        if value is not None and not any(value == each for each in same):
            raise HttpError(
                f"{self.prefix}{name} is not supported: leave it out.", param=self.prefix + name
            )

    def ignore(self, *names: str) -> None:
        """Accepts fields that do not change the answer."""
        for name in names:
            self.take(name)

    def end(self) -> None:
        """Refuses all fields that nothing has read."""
        for name in self.left:
            hint = did_you_mean(name, sorted(self.read))
            raise HttpError(
                f"{self.prefix}{name} is not a field of this request{hint or ': leave it out.'}",
                param=self.prefix + name,
            )


def within(value: float, least: float | None, most: float | None) -> bool:
    """Returns whether a number is finite and in a range."""
    return (
        math.isfinite(value)
        and (least is None or value >= least)
        and (most is None or value <= most)
    )


def limits(least: float | None, most: float | None) -> str:
    if least is None or most is None:
        return "" if least is None else f" of at least {least}"
    return f" from {least} to {most}"


def all_texts(values: Sequence[Any]) -> bool:
    return all(type(each) is str and each for each in values)


def are_tokens(value: Any, vocabulary: int) -> bool:
    """Returns whether a value is a list of token ids. It uses no loop of Python."""
    if type(value) is not list:
        return False
    return not value or (
        set(map(type, value)) == {int} and 0 <= min(value) <= max(value) < vocabulary
    )
