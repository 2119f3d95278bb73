"""The progress of a job that draws responses."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rl4p.runs.progress import NAME
from rl4p.runs.tolerance import Tolerance


class ResponseBar:
    """A progress bar on a terminal, and otherwise ten lines. Its errors are warnings."""

    def __init__(self, console: Console, total: int, done: int) -> None:
        self.console, self.total = console, total
        self.tenths = 10 * done // total
        self.tolerance = Tolerance()
        self.bar = Progress(
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("responses"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task("responses", total=total, completed=done)

    def __enter__(self) -> "ResponseBar":
        with self.tolerance.of(NAME):
            self.bar.start()
        return self

    def show(self, done: int) -> None:
        """Shows how many responses exist."""
        with self.tolerance.of(NAME):
            self.bar.update(self.task, completed=done)
            if not self.console.is_terminal and 10 * done // self.total > self.tenths:
                self.tenths = 10 * done // self.total
                self.console.print(f"{done:,} of {self.total:,} responses")

    def __exit__(self, *error: object) -> None:
        with self.tolerance.of(NAME):
            self.bar.stop()
