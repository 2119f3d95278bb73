"""The pictures of a run, the style of all pictures, and metrics in words.

Each picture has one y axis, and is readable in print and on light and dark pages.
"""

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl4p.base.errors import RunError
from rl4p.base.terminal import visible
from rl4p.runs.record import replace_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure


WORDS = {
    "reward/mean": "mean reward of the samples",
    "rollout/response_tokens": "response length (tokens)",
    "update/entropy": "entropy of the policy (nats per token)",
    "rollout/logprob_gap_max": "sampler gap (largest, of log-probabilities)",
    "rollout/truncated": "truncated responses (share)",
}
# The measures of an evaluation, by the end of the metric's name.
EVALUATIONS = {
    r"pass_at_1": "greedy pass@1",
    r"pass_at_(\d+)": r"pass@\1",
    r"avg_at_(\d+)": r"mean pass@1 of \1 samples",
    r"(loss|perplexity)": r"\1",
}


def in_words(*names: str) -> str:
    """Returns a metric, or the mean of several, in words; other names stay as they are."""
    parts = [re.fullmatch(r"eval/(.+)/([^/]+)", name) for name in names]
    measures: set[str | None] = set()
    for part in parts:
        texts = [
            match.expand(words)
            for pattern, words in EVALUATIONS.items()
            if part and (match := re.fullmatch(pattern, part[2]))
        ]
        measures.add(texts[0] if texts else None)
    if None in measures or len(measures) > 1:
        return WORDS.get(names[0], names[0]) if len(names) == 1 else f"mean of {', '.join(names)}"
    (measure,) = measures
    if len(names) > 1:
        return f"mean {measure} on {len(names)} held-out tasks"
    return f"{measure} on held-out {parts[0][1] if parts[0] else ''}"


def title(words: str) -> str:
    """Returns words with a capital letter at their beginning."""
    return words[:1].upper() + words[1:]


# Okabe and Ito's colours, which people with colour vision deficiency can tell apart, with a lighter
# first blue: all of them are visible on a light and on a dark page.
COLOURS = ("#2488CC", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES = ("-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1)))
GREY = "#7c7c7c"  # of texts and axes on a transparent picture: about 4 to 1 on white and #1e2129
BLACK = "black"  # in print


def count_steps(axes: Any) -> None:
    """Puts the ticks of the horizontal axis on whole steps."""
    axes.set_xlabel("step")
    axes.xaxis.get_major_locator().set_params(integer=True)


def panels(
    count: int, *, size: tuple[float, float], columns: int = 1, ink: str = GREY
) -> tuple["Figure", list[Any]]:
    """Returns a transparent figure with the axes of its panels, which are in rows of `columns`.

    Args:
      size: the width and the height in inches.
      ink: the colour of texts and axes.
    """
    from matplotlib.figure import Figure  # slow to import, and a run draws at its end

    figure = Figure(figsize=size, layout="constrained", facecolor="none")
    rows = -(-count // columns)
    axes = list(figure.subplots(rows, columns, squeeze=False).flatten())
    while len(axes) > count:
        axes.pop().remove()
    for each in axes:
        each.set_facecolor("none")
        each.spines[["top", "right"]].set_visible(False)
        each.spines[["bottom", "left"]].set_color(ink)
        each.tick_params(colors=ink)
        each.grid(color=ink, alpha=0.1 if ink == BLACK else 0.25)
        each.set_axisbelow(True)
        for text in (each.title, each.xaxis.label, each.yaxis.label):
            text.set_color(ink)
    return figure, axes


def legend(axes: Any, *, fewest: int = 2, ink: str = GREY, **options: Any) -> None:
    """Adds a legend without a frame if the axes have at least `fewest` named lines."""
    if len(axes.get_legend_handles_labels()[0]) >= fewest:
        axes.legend(labelcolor=ink, frameon=False, **options)


def plain(text: str) -> str:
    """Returns a text that Matplotlib shows as it stands; it would read $...$ as a formula."""
    return visible(text, keep="").replace("$", r"\$")


def save(figure: "Figure", path: Path) -> None:
    """Writes a figure as a PNG file, atomically."""
    content = BytesIO()
    figure.savefig(content, dpi=150)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"Cannot write {path}: {error.strerror}.") from error
    replace_file(path, content.getvalue())


def in_print() -> AbstractContextManager[None]:
    """Returns a context for figures of papers: small letters, and fonts that a publisher accepts.

    Publishers refuse fonts of type 3, which Matplotlib embeds into PDF files by default.
    """
    from matplotlib import rc_context

    sizes = dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize"), 8.0)
    sizes |= dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 7.0)
    style: dict[Any, Any] = {**sizes, "pdf.fonttype": 42, "svg.hashsalt": "rl4p"}
    return rc_context(style)


def formats(figure: "Figure", suffixes: Sequence[str] = ("pdf", "svg")) -> dict[str, bytes]:
    """Returns a figure in each format, without a date: equal figures are equal files."""
    contents = {}
    for suffix in suffixes:
        content = BytesIO()
        date = {"pdf": "CreationDate", "svg": "Date"}[suffix]
        figure.savefig(content, format=suffix, metadata={date: None})
        contents[suffix] = content.getvalue()
    return contents


REWARD, REJECTED = "reward/mean", "collector/rejected_share"


def plot_learning_curve(rows: list[dict[str, Any]], path: Path) -> None:
    """Plots pass@1 on held-out prompts, if there is any, and below it the training reward."""
    if not any(REWARD in row for row in rows):
        return
    scores = sorted({name for row in rows for name in row if name.endswith("/pass_at_1")})
    drawn = [names for names in (scores, [REWARD]) if names]
    figure, axes = panels(len(drawn), size=(7.0, 0.4 + 2.5 * len(drawn)))
    for panel, names in zip(axes, drawn, strict=True):
        words = {name: plain(in_words(name)) for name in names}
        for index, name in enumerate(names):
            points = [(row["step"], row[name]) for row in rows if name in row]
            look: dict[str, Any] = {"color": COLOURS[index % len(COLOURS)], "marker": "o"}
            if name == REWARD:
                look = {"color": GREY, "linewidth": 1.2}
            panel.plot(*zip(*points, strict=True), markersize=4, label=words[name], **look)
        several = "greedy pass@1, held-out prompts"
        panel.set_title(title(words[names[0]] if len(names) == 1 else several))
        panel.set_xlim(left=0)
        legend(panel, loc="best")
    if scores:
        axes[0].set_ylim(-0.02, 1.02)
        axes[0].sharex(axes[1])
    count_steps(axes[-1])
    save(figure, path)


def plot_collector(rows: list[dict[str, Any]], path: Path) -> None:
    """Plots staleness, waiting times, queue lengths and shares of groups against the step."""
    rows = [row for row in rows if "time/step" in row]
    for i, row in enumerate(rows):  # the share of the sampled groups that filters rejected
        if (rejected := row.get("collector/rejected")) is not None:
            sampled = row.get("collector/sampled", rejected)
            rows[i] = row | {REJECTED: rejected / max(sampled, 1)}
    stale = sorted(
        {name for row in rows for name in row if name.startswith("staleness/share_")},
        key=lambda name: int(name.rpartition("_")[2]),
    )
    replayed = sorted({name for row in rows for name in row if name.startswith("source/")})
    waits = ("time/step", "time/trainer_waits", "time/sampler_waits")
    groups = {
        "share of tokens by age in steps": stale,
        "seconds": waits if any(waits[1] in row for row in rows) else [],
        "groups": ["collector/in_flight", "collector/queue"],
        "share of groups": [*replayed, REJECTED],
    }
    shown = {
        label: present
        for label, names in groups.items()
        if (present := [name for name in names if any(name in row for row in rows)])
    }
    if not shown or not any(
        name.startswith(("collector/", "source/")) for row in rows for name in row
    ):
        return
    figure, axes = panels(len(shown), size=(7.0, 2.1 * len(shown) + 0.4))
    for panel, (label, names) in zip(axes, shown.items(), strict=True):
        steps = [row["step"] for row in rows]
        values = [[row.get(name, 0.0) for row in rows] for name in names]
        short = [name.rpartition("/")[2].replace("share_", "") for name in names]
        if names == stale:
            panel.stackplot(steps, values, labels=[f"{age} steps" for age in short], alpha=0.8)
        else:
            for name, line in zip(short, values, strict=True):
                panel.plot(steps, line, label=name.replace("_", " "), linewidth=1.2)
        panel.set_title(title(label))
        panel.set_ylim(bottom=0)
        legend(panel, fewest=1, loc="center left", bbox_to_anchor=(1.0, 0.5))
    count_steps(axes[-1])
    save(figure, path)
