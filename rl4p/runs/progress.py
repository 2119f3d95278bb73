"""The terminal output of a run: a progress bar, occasional samples, and a table at the end.

The bar says what the run does now, how far that is, and for how long. Without a terminal, plain
lines come at least once a minute. Both come from a thread, because a compilation or a rollout may
take minutes.

A plain line is one record at any width. It begins with the step, and two spaces come between its
fields: ``step 5/80  reward 0.250  1,234 tokens/s  2.00 s/step, 150 s left``.
"""

import logging
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from rl4p.base.terminal import visible
from rl4p.distributed.counting import newest
from rl4p.distributed.placement import device_memory
from rl4p.loop.stopwatch import activity, clock, compiled_within
from rl4p.protocols.hook import StepInfo
from rl4p.runs.remaining_time import RemainingTime
from rl4p.runs.signals import RunConsole, Tolerance

NAME = "The progress bar"
FILES = ("metrics.jsonl", "samples.jsonl", "plots/learning_curve.png")  # named at the end
log = logging.getLogger(__name__)

WORDS = {  # of parts of a run and of hooks, where they differ from the name
    "compile": "compiling",
    "reward": "grading",
    "evaluation": "evaluating",
    "checkpoints": "saving",
    "trainer_waits": "waiting for samples",
}
COUNTED = {  # the phases whose counts are shown in a part of a run
    "rollout": ("rollout",),
    "reward": ("reward",),
    "evaluation": ("evaluation", "rollout"),
    "trainer_waits": ("rollout", "reward"),
}
BEAT = 0.5  # seconds between two changes of the bar
SILENCE = 50.0  # seconds without a plain line, after which one says what the run does
SHOWN = {"pass_at_1": "pass@1", "loss": "loss"}  # the metrics of an evaluation


class ProgressBar:
    """A hook that shows a progress bar on a terminal, and otherwise prints plain lines.

    Its errors are warnings: a terminal that cannot show a text does not end the run.
    """

    def __init__(
        self,
        steps: int,
        lines_every: int,
        samples_every: int,
        *,
        time: RemainingTime | None = None,
        quiet: bool = False,
    ) -> None:
        self.every = 1  # the hook receives every step, and decides itself what to print
        self.steps = steps
        self.lines_every, self.samples_every = lines_every, samples_every  # steps between prints
        self.time = RemainingTime(steps) if time is None else time
        self.console = RunConsole(quiet=quiet)
        self.pass_at_1 = ""
        self.line = ""
        self.step: int | None = None  # None before `begin`
        self.printed = clock()  # the last plain line
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.beat, name=NAME, daemon=True)
        self.tolerance = Tolerance()
        self.bar = Progress(
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(bar_width=10),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.task = self.bar.add_task("starting", total=steps)

    def __enter__(self) -> "ProgressBar":
        self.thread.start()
        return self

    def start(self) -> None:
        """Shows the bar; before, only plain lines come, since a download shows bars of its own."""
        with self.tolerance.of(NAME):
            self.bar.start()

    def stop(self) -> None:
        """Ends the bar and the plain lines."""
        self.ended.set()
        self.thread.join()
        with self.tolerance.of(NAME):
            self.bar.stop()

    def __exit__(self, *error: object) -> None:
        self.stop()

    def begin(self, step: int, metrics: Mapping[str, float]) -> None:
        """Sets the first step and the last known metrics."""
        with self.tolerance.of(NAME):
            self.note_evaluation(metrics)
            self.time.begin(metrics)
            self.step, self.line = step, self.pass_at_1
            self.bar.update(self.task, completed=step, description=self.line)

    def beat(self) -> None:
        """Shows what the run does until it ends; called in a thread of its own."""
        while not self.ended.wait(BEAT):
            with self.tolerance.of(NAME):
                self.show_activity()

    def show_activity(self) -> None:
        """Shows what the run does now: in the bar, or in a plain line after a long silence."""
        now, terminal = activity(), self.console.is_terminal
        if (now is None) if terminal else (clock() - self.printed <= SILENCE):
            return
        words = activity_words(*(now or ("working", self.printed)))
        if self.step is not None:  # before, the devices may not be set up
            words += memory_words(device_memory())
        if terminal:
            self.bar.update(self.task, description=visible(f"{words}  {self.line}".strip()))
        else:
            self.print_line(f"step {self.step or 0}/{self.steps}  {words}")

    def print_line(self, line: str | Text) -> None:
        self.printed = clock()
        self.console.print(line, soft_wrap=True)

    def __call__(self, info: StepInfo) -> None:
        with self.tolerance.of(NAME):
            self.show(info)
        with self.tolerance.of("Printing samples"):
            if not self.samples_every or info.step % self.samples_every:
                return
            prompt, response = info.episodes[0].prompt, info.episodes[0].response
            reward = float(info.rewards.total_B[0])
            self.print_line(
                Text.assemble(  # the model's text is never markup
                    (f"step {info.step}/{self.steps}  sample: ", "dim"),
                    (shorten(prompt.question), "bold"),
                    "  ->  ",
                    shorten(response),
                    (f"  reward {reward:.2f}, answer {shorten(prompt.answer)}", "dim"),
                )
            )

    def show(self, info: StepInfo) -> None:
        """Shows the metrics of a step."""
        self.note_evaluation(info.metrics)
        self.time.add_step(info.metrics)
        line = f"reward {info.metrics['reward/mean']:.3f}  {self.pass_at_1}".rstrip()
        if (rate := info.metrics.get("rollout/tokens_per_second")) is not None:
            line += f"  {rate:,.0f} tokens/s"
        line += f"  {info.metrics['time/step']:.2f} s/step, {self.time.words(info.step)}"
        line += memory_words(info.metrics)
        self.step, self.line = info.step, line
        self.bar.update(self.task, completed=info.step, description=visible(line))
        line = f"step {info.step}/{self.steps}  {line}"
        if not self.console.quiet:
            log.info("%s", line)
        due = info.step % self.lines_every == 0 or info.step == self.steps
        if not self.console.is_terminal and (due or clock() - self.printed > SILENCE):
            self.print_line(line)

    def note_evaluation(self, metrics: Mapping[str, float]) -> None:
        """Stores pass@1 and the loss for the next lines, if the metrics contain them."""
        named = [
            f"{name.split('/')[1]} {SHOWN[name.rpartition('/')[2]]} {score:.3f}"
            for name, score in metrics.items()
            if name.startswith("eval/") and name.rpartition("/")[2] in SHOWN
        ]
        if named:
            self.pass_at_1 = "  ".join(named) + "  "


def activity_words(part: str, since: float) -> str:
    """Returns what a run does, how much of it is done, and for how long it goes on."""
    now, words = clock(), [WORDS.get(part, part)]
    for phase in COUNTED.get(part, ()):
        if (count := newest(phase)) is None or not count.total:
            continue
        amount = f"{count.done:,} of {count.total:,} {count.unit}"
        words = [f"{words[0]} {amount}"] if phase == part else [*words, amount]
        if count.tokens:
            seconds = now - count.began - compiled_within(count.began, now)
            words.append(f"{count.tokens / max(seconds, 1e-3):,.0f} tokens/s")
    return f"{', '.join(words)} for {now - since:.0f} s"


def memory_words(metrics: Mapping[str, float]) -> str:
    """Returns the memory of the fullest device as a field of a line; "" if none is reported."""
    names = {"memory/used_gib": "memory", "memory/peak_gib": "peak"}
    words = [f"{word} {metrics[x]:.1f} GiB" for x, word in names.items() if x in metrics]
    return f"  {', '.join(words)}" if words else ""


def shorten(text: str, limit: int = 160) -> str:
    """Returns the text as one visible line of at most `limit` characters."""
    line = visible(text.replace("\n", " "), keep="")
    return line if len(line) <= limit else line[: limit - 1] + "…"


def print_summary(folder: Path, summary: Mapping[str, Any]) -> None:
    """Prints the tables at the end of a run."""
    seconds = summary["seconds"]
    table = Table(box=None, padding=(0, 2, 0, 0), title_justify="left")
    for column in ("held out", "first", "last", "best"):
        table.add_column(column, justify="left" if column == "held out" else "right")
    for row in evaluation_rows(summary):
        table.add_row(*row)
    out = RunConsole()
    out.print(table)
    if summary["step"]:
        out.print(time_table(summary))
    compiled = summary["compilation"]
    out.print(
        f"{summary['status']} at step {summary['step']} after {seconds['total']:.0f} s, "
        f"of which {compiled['seconds']:.0f} s to compile {compiled['programs']} programs "
        f"({compiled['from_cache']} from the cache)",
        soft_wrap=True,
    )
    files = [name for name in FILES if (folder / name).exists()]
    out.print(f"{folder}: {', '.join(files)}", soft_wrap=True)
    steps, idle = summary["step"], summary["idle_steps"]
    lines = []
    if idle["skipped"]:
        lines.append(
            f"{idle['skipped']} of {steps} steps were skipped and changed nothing: their gradients "
            "were infinite or nan (update/skipped)."
        )
    if 2 * idle["zero_gradient"] > steps:
        lines.append(
            f"{idle['zero_gradient']} of {steps} steps changed nothing: their gradients were 0 "
            "(update/grad_norm)."
        )
    for line in lines:
        out.print(line, style="bold", soft_wrap=True)


def evaluation_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """Returns pass@k, avg@n and losses of a summary: the name, the first, last and best value."""
    evaluation, rows = summary["evaluation"], []
    for name in evaluation["last"]:
        if re.search(r"/((pass|avg)_at_\d+|loss|perplexity|preference_accuracy)$", name):
            values = (evaluation[when].get(name) for when in ("first", "last", "best"))
            texts = ("-" if v is None else f"{v:.3f}" for v in values)
            rows.append([name.removeprefix("eval/"), *texts])
    return rows


def time_table(summary: Mapping[str, Any]) -> Table:
    """Returns a table of seconds by phase and of compilation; the rest is startup and checkpoints.

    A median is over the steps with the phase, since not every step has an evaluation. Phases in
    the background take none of the whole time; only waiting for them does.
    """
    seconds, medians = summary["seconds"], summary["median_seconds"]
    total = seconds["total"]
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("time", "seconds", "share", "median per step"):
        table.add_column(column, justify="left" if column == "time" else "right")
    background = ("rollout", "reward") if "trainer_waits" in medians else ()
    for name, median in medians.items():
        share = "in background" if name in background else f"{100 * seconds[name] / total:.1f} %"
        table.add_row(name.replace("_", " "), f"{seconds[name]:.1f}", share, f"{median:.3f}")
    compiled = seconds["compile"]
    table.add_row("compilation", f"{compiled:.1f}", f"{100 * compiled / total:.1f} %", "")
    rest = total - compiled - sum(seconds[name] for name in medians if name not in background)
    table.add_row("the rest", f"{rest:.1f}", f"{100 * rest / total:.1f} %", "")
    return table


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
