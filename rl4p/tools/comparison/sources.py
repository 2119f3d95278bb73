"""The runs that the arguments of `rl4p.compare` name, and the folder for the files."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from rl4p.base.errors import InputError
from rl4p.base.storage import is_address
from rl4p.command import commands
from rl4p.runs.folder import LATEST, run_folder
from rl4p.runs.tracker.mlflow import URI
from rl4p.tools.comparison.measures import LAST, Value
from rl4p.tools.comparison.runs import LeftOut, Run, read_folders

FOLDER = "compare"  # in the folder of the sweep, or in `out`
SWEEP = "multirun.yaml"  # Hydra writes it into the folder of a sweep


@dataclass(frozen=True, kw_only=True)
class Store:
    """A tracking store of MLflow.

    Attributes:
      name: the tracker of the store.
      uri: its address.
    """

    name: Literal["mlflow"] = "mlflow"
    uri: str


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """The words of the command.

    Attributes:
      run: the folders of runs or of sweeps.
      experiment: an MLflow experiment, instead of folders.
      tracker: the store of the experiment; None is MLFLOW_TRACKING_URI.
      metric: the metric to compare.
      value: the number of a run that counts: `last`, `last_K` or `area`.
      out: the folder for the files.
    """

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


def read_options(arguments: Sequence[str]) -> CompareOptions:
    """Returns the options of a command line.

    Raises:
      InputError: there is not exactly one source of runs, or a word is unknown.
    """
    return commands.read(arguments, CompareOptions, "compare", sections={"tracker": Store}).options


def read(options: CompareOptions) -> tuple[list[Run], list[LeftOut], Path]:
    """Returns the finished runs, the other ones, and the folder for the files.

    The folder is `compare` in `out`, or else in the folder of the sweep, or else in a new folder
    below outputs/comparisons.

    Raises:
      InputError: there are no such runs.
      RunError: MLflow cannot be read.
    """
    now = datetime.now()
    out = Path("outputs", "comparisons", f"{now:%Y-%m-%d}", f"{now:%H-%M-%S}")
    if options.experiment is not None:
        from rl4p.tools.comparison.mlflow import read_experiment  # imports MLflow

        uri = None if options.tracker is None else options.tracker.uri
        runs, left_out = read_experiment(options.experiment, uri, options.metric)
    else:
        places = [
            run_folder(name) if name == LATEST or is_address(name) else Path(name)
            for name in options.run
        ]
        runs, left_out = read_folders(places)
        out = sweep_of(places) or out
    return runs, left_out, Path(options.out or out).expanduser() / FOLDER


def sweep_of(places: Sequence[Path]) -> Path | None:
    """Returns the folder of the sweep whose runs these are; None if they are of no single sweep."""
    places = [place.expanduser() for place in places]
    if len(places) == 1 and places[0].is_dir() and not (places[0] / "config.yaml").exists():
        return places[0]
    parents = {place.parent for place in places}
    common = next(iter(parents))
    return common if len(parents) == 1 and (common / SWEEP).exists() else None
