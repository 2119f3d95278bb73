"""Errors that are shown to the user as one sentence. Each class has its own exit code.

Exit codes of every entry point: 0 finished, 2 the configuration or an input is wrong, 3 stopped by
a signal and saved, 1 anything else.
"""


class InputError(Exception):
    """An error in the configuration or an input. The message says where, and what is correct."""

    exit_code = 2


class RunError(Exception):
    """A failure of a run whose configuration is correct. The message says why the run ended."""

    exit_code = 1


class Stopped(Exception):
    """A stop that a signal requested. The run has been saved."""

    exit_code = 3
