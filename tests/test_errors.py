"""Tests that each kind of error has its own exit code, which scripts rely on."""

import pytest

from rl4p import errors
from rl4p.errors import InputError, RunError, Stopped


@pytest.mark.parametrize(("kind", "exit_code"), [(InputError, 2), (RunError, 1), (Stopped, 3)])
def test_the_exit_codes_are_those_that_are_documented(kind, exit_code):
    assert kind.exit_code == kind("why").exit_code == exit_code
    assert str(kind("why")) == "why"
    assert "0 finished, 2 the configuration or an input is wrong, 3 stopped by\na signal" in (
        errors.__doc__
    )


def test_no_kind_of_error_is_caught_with_another():
    for kind in (InputError, RunError, Stopped):
        assert kind.__bases__ == (Exception,)
