"""The samples of several sources for the same prompts, side by side.

Two samples belong together if their prompt, its task and id, the step and the number of the sample
are equal. Runs of one seed see the same prompts in the same steps, and evaluations of the same data
have the same prompts.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from rl4p.runs.sample import Sample
from rl4p.tools.browser.samples import grades_of, visible

HERE = Path(__file__).parent
VERDICTS = {True: "right", False: "wrong", None: "not graded"}

Row = Mapping[int, Sample]  # the samples for a prompt, by the index of their source


def side_by_side(sources: Sequence[Iterable[Sample]], fewest: int) -> list[Row]:
    """Returns the samples of each prompt that `fewest` sources have, newest step first.

    Of equal samples of a source the first counts.
    """
    rows: dict[tuple[Any, ...], dict[int, Sample]] = defaultdict(dict)
    for source, samples in enumerate(sources):
        for sample in samples:
            key = (-(sample.step or 0), sample.task, sample.id, sample.sample, sample.prompt)
            rows[key].setdefault(source, sample)
    shared = {key: row for key, row in rows.items() if len(row) >= fewest}
    order = sorted(shared, key=lambda key: (key[0], key[1] or "", key[2] or "", key[3] or 0))
    return [shared[key] for key in order]


def counts(names: Sequence[str], rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Returns how many answers of each source are right, alone and beside the first source.

    better, worse: the prompts of which only this source has a right answer, or only the first.
    """
    right = [[row[i].correct is True for row in rows] for i in range(len(names))]
    return [
        {
            "name": name,
            "right": sum(own),
            "share": sum(own) / len(rows),
            "better": sum(x and not y for x, y in zip(own, right[0], strict=True)),
            "worse": sum(y and not x for x, y in zip(own, right[0], strict=True)),
        }
        for name, own in zip(names, right, strict=True)
    ]


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


def show(
    console: Console, names: Sequence[str], rows: Sequence[Row], shown: Sequence[Row], note: str
) -> None:
    """Prints the counts of all rows, and below them the responses of the shown ones."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("", "right", "share", "only this right", "only the first right"):
        table.add_column(name, justify="right" if name else "left", overflow="fold")
    for count in counts(names, rows):
        numbers = (count["right"], f"{count['share']:.1%}", count["better"], count["worse"])
        table.add_row(visible(count["name"]), *map(str, numbers))
    console.print(table)
    console.print(Text(visible(note), style="dim"), soft_wrap=True)
    for row in shown:
        lines = [(title(row[0]), "bold"), (row[0].prompt, "dim")]
        lines += [] if row[0].answer is None else [(f"answer {row[0].answer}", "dim")]
        for name, sample in zip(names, row.values(), strict=True):
            lines += [(f"{name}: {verdict(sample)}", "bold"), (sample.response, "")]
        console.print(Rule(style="dim"))
        for line, style in lines:
            console.print(Text(visible(line), style=style), soft_wrap=True)


def page(names: Sequence[str], rows: Sequence[Row], shown: Sequence[Row], note: str) -> str:
    """Returns a page without scripts, on which each source has a column."""
    every = counts(names, rows)
    return render(HERE / "beside.html", names=names, counts=every, rows=shown, note=note)


def render(template: Path, **values: Any) -> str:
    """Returns the page of a template, which may show rows of samples by `prompt.html`.

    The model writes the texts of samples, so they are hostile: every text is escaped, and has signs
    for the characters that cannot be seen. No tag can begin in JSON of the filter `tojson`.
    """
    environment = Environment(
        loader=FileSystemLoader([template.parent, HERE]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.globals |= {"title": title, "verdict": verdict, "verdicts": VERDICTS}
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    html = environment.get_template(template.name).render(values)
    return html.encode("utf-8", "replace").decode()  # a lone surrogate cannot be written
