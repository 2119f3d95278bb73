"""Tests the progress of a job on a terminal and without one."""

import io

from rich.console import Console

from rl4p.tools.bar import ResponseBar


def printed(done, counts, total=1000, **options):
    console = Console(file=io.StringIO(), width=80, **options)
    with ResponseBar(console, total, done) as bar:
        for count in counts:
            bar.show(count)
    return console.file.getvalue()


def test_without_a_terminal_each_tenth_is_a_line():
    text = printed(130, range(131, 1001))
    assert text.splitlines() == [
        *(f"{n}00 of 1,000 responses" for n in range(2, 10)),
        "1,000 of 1,000 responses",
    ]
    assert printed(0, [999]).splitlines() == ["999 of 1,000 responses"]


def test_a_terminal_gets_a_bar():
    assert "7/1000" in printed(0, [7], force_terminal=True)
