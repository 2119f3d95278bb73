"""The small runs of tests/support."""

from tests.support.runs import command, train  # noqa: F401
