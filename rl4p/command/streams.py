"""Standard streams that accept any text, also characters that their encoding lacks."""

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
