"""Consoles of rich for tables and progress, with text of others as `terminal.py` shows it."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from rl4p.terminal import visible


class VisibleConsole(Console):
    """A console of rich. Only its own styles and movements reach the terminal as they are."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)  # before its width is measured

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else visible(segment.text)
            yield Segment(text, segment.style, segment.control)


def console(**options: Any) -> Console:
    """Returns a console for text of anyone: none of it is markup, and nothing is highlighted."""
    return VisibleConsole(**{"highlight": False, "markup": False, "emoji": False} | options)
