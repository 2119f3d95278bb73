"""Tables and progress on the terminal. It imports rich, which --help and --cfg do not need."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from rl4p.base.terminal import visible


class VisibleConsole(Console):
    """A console for text of anyone: none of it is markup, and nothing is highlighted.

    Escape sequences that rich writes act on the terminal; those within a text are only shown.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)  # before its width is measured

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else visible(segment.text)
            yield Segment(text, segment.style, segment.control)
