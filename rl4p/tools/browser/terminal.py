"""Samples in the terminal. The model's text is never interpreted as markup or as control codes."""

import math
import os
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from rl4p.runs.sample import Sample
from rl4p.tools.browser.samples import (
    SHADES,
    Token,
    grades_of,
    shade,
    tokens_of,
    turn_lines,
    turn_title,
    visible,
)

NOT_IN_LOSS = "dim strike"


def show(console: Console, samples: Sequence[Sample], heading: str, *, numbers: bool) -> None:
    """Prints samples, through a pager if the console is a terminal."""
    every_token = [token for sample in samples for token in tokens_of(sample)]
    legend = Text("(these samples have no tokens)", style="dim")
    if every_token and console.color_system is None:
        legend = Text("(probabilities of tokens: on a terminal with colours, or tokens=true)")
    elif every_token:
        legend = Text("probability of each token: ")
        for each in SHADES:
            legend.append(each.label, each.terminal).append("  ")
        if any(token.in_loss is False for token in every_token):
            legend.append("not in the loss", NOT_IN_LOSS)
    parts: list[RenderableType] = [Text(visible(heading), style="bold"), legend]
    for sample in samples:
        parts += [Rule(style="dim"), Text(visible(title(sample)), style="bold"), body(sample)]
        if numbers:
            parts.append(table(tokens_of(sample)))
    if not console.is_terminal:
        console.print(Group(*parts), soft_wrap=True)  # a line of text stays one line
        return
    os.environ.setdefault("LESS", "-RFX")  # colours; and no pager for a single screen
    with console.pager(styles=True):
        console.print(Group(*parts))


def title(sample: Sample) -> str:
    """Returns what a sample is and how it was graded, without what is absent."""
    verdict = {True: "right", False: "wrong", None: None}[sample.correct]
    terms = ", ".join(f"{name} {grade:g}" for name, grade in grades_of(sample).items())
    parts = (
        None if sample.step is None else f"step {sample.step}",
        sample.id or sample.task,
        None if sample.sample is None else f"sample {sample.sample}",
        verdict,
        None if sample.reward is None else f"reward {sample.reward:.3g}",
        f"({terms})" if terms else None,
        None if sample.advantage is None else f"advantage {sample.advantage:+.3g}",
        None if sample.length is None else f"{sample.length} tokens",
        sample.status,
    )
    return "  ".join(part for part in parts if part)


def body(sample: Sample) -> Text:
    """Returns the prompt and the response, its tokens shaded by their probability."""
    text = Text(no_wrap=False)
    rendered = (sample.tokens or {}).get("prompt")  # in its chat template
    text.append(visible(str(sample.prompt if rendered is None else rendered)), style="dim")
    text.append("\n")
    if not sample.tokens:
        text.append(visible(sample.response))
    for token in tokens_of(sample):
        text.append(visible(token.text), style=style(token))
    for number, turn in enumerate(sample.turns or (), 1):
        text.append(f"\n{visible(turn_title(number, turn))}", style="bold dim")
        for kind, line in turn_lines(turn):
            style_of = {"command": "bold", "code": "" if line == "exit code 0" else "bold"}
            indented = visible(line).replace("\n", "\n  ")
            text.append(f"\n  {indented}", style=style_of.get(kind, "dim"))
    if sample.failure is not None:
        text.append(f"\nthe environment failed: {visible(sample.failure)}", style="dim")
    if sample.answer is not None:
        text.append(f"\nanswer {visible(sample.answer)}", style="dim")
    return text


def style(token: Token) -> str:
    if token.in_loss is False:
        return NOT_IN_LOSS
    index = shade(token.logprob)
    return "" if index is None else SHADES[index].terminal


def table(tokens: Sequence[Token]) -> Table:
    """Returns the numbers of each token."""
    rows = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("", "token", "id", "log p", "p", "in the loss", "advantage"):
        rows.add_column(name, justify="left" if name in ("token", "in the loss") else "right")
    for i, token in enumerate(tokens):
        p = None if token.logprob is None else math.exp(token.logprob)
        rows.add_row(
            str(i),
            Text(repr(visible(token.text))[1:-1], style=style(token)),
            "" if token.id is None else str(token.id),
            "" if token.logprob is None else f"{token.logprob:.4f}",
            "" if p is None else f"{p:.4f}",
            {True: "yes", False: "no", None: ""}[token.in_loss],
            "" if token.advantage is None else f"{token.advantage:+.4f}",
        )
    return rows
