"""The errors that people see as one sentence, each with the exit code of its kind.

Exit codes of every entry point: 0 finished, 2 the configuration or an input is wrong, 3 stopped by
a signal and saved, 1 anything else.
"""


class InputError(Exception):
    """The configuration or an input is wrong: says what, where, and what would be right."""

    exit_code = 2


class RunError(Exception):
    """A run cannot go on, through no mistake in its configuration: says why, and at which step."""

    exit_code = 1


class Stopped(Exception):
    """A signal asked the run to stop; everything is saved."""

    exit_code = 3
