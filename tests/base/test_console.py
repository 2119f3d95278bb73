"""Tables and progress with text of others: shown, and never acting on the terminal."""

import io
import re

import pytest
from rich.progress import Progress, TextColumn
from rich.table import Table
from rich.text import Text

from rl4p.base.console import VisibleConsole
from rl4p.base.terminal import visible
from tests.support.hostile_text import ACTS, hostile


@hostile
@pytest.mark.parametrize("terminal", [False, True])
def test_tables_and_progress_are_visible(text, terminal):
    """Of a terminal's sequences only those of rich itself are written."""

    def drawn(text):
        out = io.StringIO()
        shown = VisibleConsole(file=out, force_terminal=terminal, width=200, color_system=None)
        table = Table(text, title=text, caption=text)
        table.add_row(text)
        shown.print(table)
        shown.print(text, Text(text), Text.assemble((text, "bold")))
        with Progress(TextColumn("{task.description}", markup=False), console=shown) as bar:
            bar.add_task(text)
            shown.print(text)
        return out.getvalue()

    escapes = re.compile("\x1b[^a-zA-Z]*[a-zA-Z]")
    assert terminal or drawn(text).count(visible(text, keep="").partition("<")[2][:6]) > 3
    assert set(escapes.findall(drawn(text))) == set(escapes.findall(drawn("plain")))
    assert not ACTS.search(escapes.sub("", drawn(text)).replace("\r", ""))


def test_no_text_is_markup():
    out = io.StringIO()
    VisibleConsole(file=out, force_terminal=True).print(
        "[link=http://evil]a[/link] [red]b :smile: 1"
    )
    assert out.getvalue() == "[link=http://evil]a[/link] [red]b :smile: 1\n"
