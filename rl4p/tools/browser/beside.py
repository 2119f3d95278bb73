"""The samples of several runs or evaluations for the same prompts, side by side.

Two samples belong together if their prompt, its task and id, the step and the number of the sample
are equal. Runs of one seed see the same prompts in the same steps, and evaluations of the same data
have the same prompts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from rl4p.base.errors import InputError
from rl4p.runs.sample import Sample
from rl4p.tools.browser.samples import SampleFilter, grades_of, visible

TEMPLATE = Path(__file__).with_name("beside.html")
VERDICTS = {True: "right", False: "wrong", None: "not graded"}


@dataclass(frozen=True, kw_only=True)
class Beside:
    """The samples of several sources.

    Attributes:
      names: the sources.
      rows: for each prompt the sample of each source, in their order.
    """

    names: tuple[str, ...]
    rows: tuple[tuple[Sample, ...], ...]

    def counts(self) -> list[dict[str, Any]]:
        """Returns how many answers of each source are right, alone and beside the first source.

        better, worse: the prompts of which only this source has a right answer, or only the first.
        """
        right = [[row[i].correct is True for row in self.rows] for i in range(len(self.names))]
        return [
            {
                "name": name,
                "right": sum(own),
                "share": sum(own) / len(self.rows),
                "better": sum(x and not y for x, y in zip(own, right[0], strict=True)),
                "worse": sum(y and not x for x, y in zip(own, right[0], strict=True)),
            }
            for name, own in zip(self.names, right, strict=True)
        ]


def side_by_side(names: Sequence[str], sources: Sequence[Sequence[Sample]]) -> Beside:
    """Returns the samples of the prompts that all sources have, newest step first.

    Raises:
      InputError: they have none in common.
    """
    by_key = [{key_of(sample): sample for sample in reversed(samples)} for samples in sources]
    keys = [key for key in by_key[0] if all(key in own for own in by_key)]
    if not keys:
        raise InputError(
            f"{', '.join(names)} have no samples for the same prompts, of the same step and number."
        )
    keys.sort(key=lambda key: (-(key[3] or 0), key[0] or "", key[1] or "", key[4] or 0))
    rows = tuple(tuple(own[key] for own in by_key) for key in keys)
    return Beside(names=tuple(names), rows=rows)


def key_of(sample: Sample) -> tuple[Any, ...]:
    return sample.task, sample.id, sample.prompt, sample.step, sample.sample


def chosen(beside: Beside, choice: SampleFilter) -> list[tuple[Sample, ...]]:
    """Returns the rows of which a sample is chosen."""
    return [row for row in beside.rows if any(map(choice.has, row))]


def verdict(sample: Sample) -> str:
    """Returns how a sample was graded, in words."""
    terms = ", ".join(f"{name} {grade:g}" for name, grade in grades_of(sample).items())
    reward = "" if sample.reward is None else f", reward {sample.reward:.3g}"
    return VERDICTS[sample.correct] + reward + (f" ({terms})" if terms else "")


def title(sample: Sample) -> str:
    """Returns what the samples of a row have in common."""
    parts = (
        None if sample.step is None else f"step {sample.step}",
        sample.task,
        sample.id,
        None if sample.sample is None else f"sample {sample.sample}",
    )
    return "  ".join(part for part in parts if part)


def show(console: Console, beside: Beside, rows: Sequence[tuple[Sample, ...]], note: str) -> None:
    """Prints the counts, and the responses to each prompt below one another."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("", "right", "share", "only this right", "only the first right"):
        table.add_column(name, justify="right" if name else "left", overflow="fold")
    for count in beside.counts():
        shown = (count["right"], f"{count['share']:.1%}", count["better"], count["worse"])
        table.add_row(visible(count["name"]), *map(str, shown))
    console.print(table)
    console.print(Text(visible(note), style="dim"), soft_wrap=True)
    for row in rows:
        console.print(Rule(style="dim"))
        console.print(Text(visible(title(row[0])), style="bold"), soft_wrap=True)
        console.print(Text(visible(row[0].prompt), style="dim"), soft_wrap=True)
        if row[0].answer is not None:
            console.print(Text(f"answer {visible(row[0].answer)}", style="dim"), soft_wrap=True)
        for name, sample in zip(beside.names, row, strict=True):
            heading = f"{visible(name)}: {visible(verdict(sample))}"
            console.print(Text(heading, style="bold"), soft_wrap=True)
            console.print(Text(visible(sample.response)), soft_wrap=True)


def page(beside: Beside, rows: Sequence[tuple[Sample, ...]], note: str) -> str:
    """Returns a page without scripts, on which each source has a column."""
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    html = environment.from_string(TEMPLATE.read_text("utf-8")).render(
        names=beside.names,
        counts=beside.counts(),
        rows=rows,
        note=note,
        title=title,
        verdict=verdict,
        verdicts=VERDICTS,
    )
    return html.encode("utf-8", "replace").decode()  # a lone surrogate cannot be written
