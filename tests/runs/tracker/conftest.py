"""The stores and runs of tests/support."""

from tests.support.trackers import _impatient, dead, ended, record, store, template  # noqa: F401
