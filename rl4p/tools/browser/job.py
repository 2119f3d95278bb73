"""The job: the samples that the words choose, on the terminal or in a file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rl4p.base.console import VisibleConsole
from rl4p.base.errors import InputError
from rl4p.base.storage import local_copy
from rl4p.base.terminal import write
from rl4p.command import commands
from rl4p.command.commands import Grammar, is_page_of, refuse_other_file
from rl4p.runs.folder import run_folder
from rl4p.runs.record import replace_file
from rl4p.runs.sample import Sample
from rl4p.tools.browser import beside
from rl4p.tools.browser.page import page
from rl4p.tools.browser.samples import SampleFilter, samples_in
from rl4p.tools.browser.terminal import show

ON_TERMINAL, ON_PAGE = 20, 400  # samples, unless `limit` says otherwise


@dataclass(frozen=True, kw_only=True)
class SamplesOptions(SampleFilter):
    """The words of the command, as --help explains them."""

    run: commands.SEVERAL = ()
    file: str | None = None
    out: str | None = None
    term: str | None = None
    tokens: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.run) == (self.file is not None):
            raise InputError("Give run=FOLDER or file=FILE: one of them has the samples.")
        if len(self.run) > 1 and (self.tokens or self.longest is not None):
            raise InputError("tokens and longest are for one run: name one folder.")
        if self.out is not None and self.tokens:
            raise InputError("tokens=true is for the terminal: the page always has them.")


SAMPLES = Grammar(name="samples", kind=SamplesOptions)


def browse(arguments: Sequence[str]) -> None:
    """Shows or writes the samples that the arguments choose."""
    options = commands.read(arguments, SAMPLES).options
    if len(options.run) > 1:
        browse_side_by_side(options)
        return
    place = (
        run_folder(options.run[0]) if options.run else local_copy(str(options.file)).expanduser()
    )
    samples, term = samples_in(place, options.term)
    chosen = options.chosen(samples)
    if not chosen:
        raise InputError(f"No sample of the {len(samples)} in {place} matches: {choices(samples)}.")
    most = options.limit or options.longest or (ON_TERMINAL if options.out is None else ON_PAGE)
    shown = chosen if most == "all" else chosen[:most]
    note = f"{len(shown):,} of {len(samples):,} samples"
    if len(shown) < len(chosen):
        note += f", the newest of {len(chosen):,} that match (limit=all shows these)"
    heading = f"Samples of {place.resolve()}"
    if options.out is None:
        show(VisibleConsole(), shown, f"{heading}: {note}", numbers=options.tokens)
    else:
        write_page(options.out, page(shown, heading, note, term), note)


def browse_side_by_side(options: SamplesOptions) -> None:
    """Shows or writes the samples of several folders for the same prompts."""
    places = [run_folder(name) for name in options.run]
    if len(set(places)) < len(places):
        raise InputError("run names a folder twice: give each folder once.")
    names = [str(place) for place in places]
    sources = [samples_in(place, options.term)[0] for place in places]
    rows = beside.side_by_side(sources, fewest=len(sources))
    if not rows:
        raise InputError(
            f"{', '.join(names)} have no samples for the same prompts, of the same step and number."
        )
    chosen = [row for row in rows if any(map(options.has, row.values()))]
    if not chosen:
        first = [row[0] for row in rows]
        raise InputError(f"None of the {len(first)} prompts matches: {choices(first)}.")
    most = options.limit or (ON_TERMINAL if options.out is None else ON_PAGE)
    shown = chosen if most == "all" else chosen[:most]
    note = f"{len(shown):,} of {len(rows):,} prompts that all have"
    if options.out is None:
        beside.show(VisibleConsole(), names, rows, shown, note)
    else:
        write_page(options.out, beside.page(names, rows, shown, note), note)


def write_page(name: str, html: str, note: str) -> None:
    """Writes a page."""
    out = Path(name).expanduser()
    refuse_other_file(out, "samples", is_page_of("samples"))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"out={out} cannot be written: {error.strerror}.") from None
    replace_file(out, html)
    write(f"{out}: {note}")


def choices(samples: Sequence[Sample]) -> str:
    """Returns what there is to choose from."""
    tasks = sorted({sample.task for sample in samples if sample.task is not None})
    steps = sorted({sample.step for sample in samples if sample.step is not None})
    parts = [
        f"tasks {', '.join(tasks)}" if tasks else "no tasks",
        f"steps {', '.join(map(str, steps))}" if steps else "no steps",
        f"{sum(sample.correct is True for sample in samples)} right",
        f"{sum(sample.correct is False for sample in samples)} wrong",
    ]
    return f"there are {'; '.join(parts)}"
