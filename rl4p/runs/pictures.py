"""The style of all pictures: one y axis each, readable in print and on light and dark pages."""

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

# Okabe and Ito's colours, which people with colour vision deficiency can tell apart, with a lighter
# first blue: all of them are visible on a light and on a dark page.
COLOURS = ("#2488CC", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES = ("-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1)))
GREY = "#7c7c7c"  # of texts and axes on a transparent picture: about 4 to 1 on white and #1e2129
BLACK = "black"  # in print


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
    """Writes a figure as a PNG file, atomically.

    Raises:
      RunError: the file cannot be written.
    """
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
