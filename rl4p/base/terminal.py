"""Text of others on the terminal and in logs.

A recipe, a model or a server may write anything, also escape sequences that clear the screen, set
its title or fill the clipboard. All text for a terminal or a log passes through `visible`: by
`write` for lines, by `VisibleRecord` for logs, and by `VisibleConsole` for tables and progress.
"""

import io
import logging
import sys
from typing import Any, TextIO


def visible(text: str, *, keep: str = "\n\t") -> str:
    """Returns the text with a visible sign for each character that could not be seen.

    Control characters, other invisible characters, and those that change the direction of the text
    around them become their code, such as <U+001B>, except those to `keep`.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keep else f"<U+{ord(c):04X}>"  # also a lone surrogate
        for c in text
    )


def write(text: object, stream: TextIO | None = None) -> None:
    """Prints a line, to the standard output unless another stream is given."""
    print(visible(str(text)), file=stream or sys.stdout, flush=stream is None)


class VisibleRecord(logging.LogRecord):
    """A record of a log whose message and traceback are visible text."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if self.exc_info:
            self.exc_text = visible(logging.Formatter().formatException(self.exc_info))

    def getMessage(self) -> str:  # noqa: N802 - the name of the base class
        return visible(super().getMessage())


def make_logs_visible() -> None:
    """Makes the messages of all loggers visible text in this process."""
    logging.setLogRecordFactory(VisibleRecord)


class VisibleStream(io.TextIOBase):
    """A stream that writes visible text to another, for code that prints by itself."""

    def __init__(self, stream: TextIO):
        self.stream = stream

    def write(self, text: str) -> int:
        return self.stream.write(visible(text))

    def flush(self) -> None:
        if not self.stream.closed:  # the collector closes this stream later, which flushes it
            self.stream.flush()

    def fileno(self) -> int:
        return self.stream.fileno()

    def isatty(self) -> bool:
        return self.stream.isatty()
