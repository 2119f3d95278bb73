"""The progress of a job that draws responses."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class ResponseBar:
    """A progress bar on a terminal, and otherwise ten lines."""

    def __init__(self, console: Console, total: int, done: int) -> None:
        self.console, self.total = console, total
        self.tenths = 10 * done // total
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
        self.bar.start()
        return self

    def show(self, done: int) -> None:
        """Shows how many responses exist."""
        self.bar.update(self.task, completed=done)
        if not self.console.is_terminal and 10 * done // self.total > self.tenths:
            self.tenths = 10 * done // self.total
            self.console.print(f"{done:,} of {self.total:,} responses")

    def __exit__(self, *error: object) -> None:
        self.bar.stop()
