"""The job of `rl4p.compare`, and of a sweep at its end: from the words to the files."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

import yaml

from rl4p.base.errors import InputError, RunError
from rl4p.base.storage import is_address
from rl4p.base.terminal import write
from rl4p.command import commands
from rl4p.command.commands import is_document_with, is_page_of, refuse_other_file
from rl4p.configuration.yaml_file import read_yaml
from rl4p.runs.folder import LATEST, run_folder
from rl4p.runs.record import replace_file
from rl4p.runs.tracker.mlflow import URI
from rl4p.runs.tracker.sweep import attach_comparison
from rl4p.tools.comparison.charts import figures_for_papers
from rl4p.tools.comparison.measures import LAST, RECORDED, Value
from rl4p.tools.comparison.page import page
from rl4p.tools.comparison.report import document, markdown, print_comparison, tables
from rl4p.tools.comparison.statistics import Comparison, analysed
from rl4p.tools.runs import LeftOut, Run, read_experiment, read_folders

FOLDER = "compare"  # in the folder of the sweep, or in `out`
SWEEP_FILE = "multirun.yaml"  # Hydra writes it into the folder of a sweep
BEST = "optimization_results.yaml"  # which the Optuna sweeper writes


@dataclass(frozen=True, kw_only=True)
class Store:
    """A tracking store of MLflow, as keys of `tracker`."""

    name: Literal["mlflow"] = "mlflow"
    uri: str


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """The words of the command, as --help explains them."""

    run: commands.SEVERAL = ()
    experiment: str | None = None
    tracker: Store | None = None
    metric: str | None = None
    value: str = LAST.name
    out: str | None = None

    def __post_init__(self) -> None:
        Value(self.value)  # refuses another one
        named = self.experiment is not None
        without_store = named and self.tracker is None and not os.environ.get(URI)
        if without_store or bool(self.run) == named or (self.tracker is not None and not named):
            raise InputError("Give run=FOLDER, or experiment=NAME tracker.uri=URI; see --help.")


COMPARE = commands.Grammar(name="compare", kind=CompareOptions, sections={"tracker": Store})


def read(options: CompareOptions) -> tuple[list[Run], list[LeftOut], Path]:
    """Returns the finished runs, the other ones, and the folder for the files.

    The folder is `compare` in `out`, or else in the folder of the sweep, or else in a new folder
    below outputs/comparisons.
    """
    now = datetime.now()
    out = Path("outputs", "comparisons", f"{now:%Y-%m-%d}", f"{now:%H-%M-%S}")
    if options.experiment is not None:
        uri = None if options.tracker is None else options.tracker.uri
        runs, left_out = read_experiment(options.experiment, uri, RECORDED, options.metric)
    else:
        places = [
            run_folder(name) if name == LATEST or is_address(name) else Path(name)
            for name in options.run
        ]
        runs, left_out = read_folders(places)
        places = [place.expanduser() for place in places]
        parents = {place.parent for place in places}
        if len(places) == 1 and places[0].is_dir() and not (places[0] / "config.yaml").exists():
            out = places[0]  # a sweep
        elif len(parents) == 1 and (places[0].parent / SWEEP_FILE).exists():
            out = places[0].parent
    return runs, left_out, Path(options.out or out).expanduser() / FOLDER


def compare(
    runs: Sequence[Run],
    left_out: Sequence[LeftOut],
    out: Path,
    *,
    metric: str | None = None,
    value: Value = LAST,
) -> Comparison:
    """Compares runs and writes index.html, compare.json, figures and tables into `out`.

    Args:
      metric: None is pass@1 on the held-out prompts.

    Raises:
      InputError: there is no finished run, none has the metric, or a file in `out` is of something
        else.
      RunError: the files cannot be written.
    """
    listing = out / "compare.json"
    made = is_document_with("groups", "differences", "left_out")
    refuse_other_file(out, "compare", is_page_of("compare"), file=out / "index.html")
    refuse_other_file(out, "compare", made, file=listing)
    comparison = analysed(runs, left_out, out, metric, value)
    files = tables(comparison) | figures_for_papers(comparison)
    written = listing.is_file() and listing.stat().st_size > 0
    earlier = (json.loads(listing.read_bytes()).get("files") if written else None) or ()
    for name in files:
        refuse_other_file(out, "compare", lambda path: path.name in earlier, file=out / name)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"Cannot create {out}: {error.strerror}.") from error
    replace_file(out / "index.html", page(comparison))
    content = document(comparison) | {"files": sorted(files)}
    replace_file(listing, json.dumps(content, indent=2) + "\n")
    for name, text in files.items():
        replace_file(out / name, text)
    return comparison


def compare_runs(folder: Path, runs: Sequence[Path]) -> None:
    """Prints the comparison of the runs of a sweep, and writes its page."""
    if (best := best_values(folder)) is not None:
        write(best)
    if not runs:
        return
    out = folder / FOLDER
    try:
        comparison = compare(*read_folders(runs), out)
        print_comparison(comparison)
        means = {result.group.name: result.iqm for result in comparison.results}
        attach_comparison(folder, out, markdown(comparison), means)
    except (InputError, RunError, OSError) as error:  # the runs have ended and are complete
        write(f"The runs of this sweep cannot be compared: {error}", sys.stderr)


def best_values(folder: Path) -> str | None:
    """Returns a line with the best values that a search found; None if it is no search."""
    try:
        best = read_yaml(folder / BEST)
        values = " ".join(f"{key}={value}" for key, value in best["best_params"].items())
        return f"best: {values} (pass@1 {best['best_value']:.3f})"
    except (InputError, OSError, KeyError, TypeError, ValueError, yaml.YAMLError):
        return None
