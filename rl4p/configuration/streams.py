"""The standard streams of a command, which may lack characters of what a model or a user writes."""

import io
import sys


def replace_what_cannot_be_shown() -> None:
    """Makes the standard streams replace characters that their encoding lacks.

    By default Python raises UnicodeEncodeError, for example for Chinese on an ASCII terminal, and
    for a lone surrogate on every terminal.
    """
    for stream, errors in ((sys.stdout, "replace"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)
