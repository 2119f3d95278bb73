"""The runs that the arguments of `rl4p.compare` name, and the folder for the files."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import yaml

from rl4p.configuration.arguments import key_values
from rl4p.errors import InputError
from rl4p.runs.comparison.runs import LeftOut, Run, read_folders

FOLDER = "compare"  # in the folder of the sweep, or in `out`
SWEEP = "multirun.yaml"  # Hydra writes it into the folder of a sweep
SOURCES = {
    "sweep": {"sweep": "FOLDER"},
    "runs": {"runs": "[A,B,...]"},
    "experiment": {"experiment": "NAME", "tracker.uri": "URI"},
}
OPTIONAL = {"metric": None, "out": None}


def parsed(arguments: Sequence[str]) -> dict[str, str]:
    """Returns the arguments by key.

    Raises:
      InputError: there is not exactly one source of runs, or a key is missing or unknown.
    """
    sources = [key for key in SOURCES if any(given.startswith(f"{key}=") for given in arguments)]
    if len(sources) != 1:
        raise InputError(
            "Give one of sweep=FOLDER, runs=[A,B,...], and experiment=NAME tracker.uri=URI. "
            f"Optional: {', '.join(f'{key}=' for key in OPTIONAL)}."
        )
    return key_values(arguments, SOURCES[sources[0]], OPTIONAL)


def read(given: Mapping[str, str]) -> tuple[list[Run], list[LeftOut], Path]:
    """Returns the finished runs, the other ones, and the folder for the files.

    The folder is `compare` in `out`, or else in the folder of the sweep, or else in a new folder
    below outputs/comparisons.

    Raises:
      InputError: there are no such runs.
      RunError: MLflow cannot be read.
    """
    now = datetime.now()
    out = Path("outputs", "comparisons", f"{now:%Y-%m-%d}", f"{now:%H-%M-%S}")
    if "experiment" in given:
        from rl4p.runs.comparison.mlflow import read_experiment  # imports MLflow

        runs, left_out = read_experiment(
            given["experiment"], given["tracker.uri"], given.get("metric")
        )
    else:
        places = [Path(given["sweep"])] if "sweep" in given else folders(given["runs"])
        runs, left_out = read_folders(places)
        out = sweep_of(places) or out
    return runs, left_out, Path(given.get("out", out)).expanduser() / FOLDER


def folders(value: str) -> list[Path]:
    """Returns the folders in a list such as [A,B]; quotes protect commas: [A,'B,C'].

    Raises:
      InputError: the value is no such list.
    """
    if Path(value).expanduser().exists():
        return [Path(value)]
    try:  # this loader keeps numbers and dates as text
        found = yaml.load(value, Loader=yaml.BaseLoader)
    except yaml.YAMLError:
        found = None
    names = [found] if isinstance(found, str) else found
    if not names or not isinstance(names, list) or not all(isinstance(x, str) for x in names):
        raise InputError(f"runs={value} is not a list of folders such as [A,B].")
    return [Path(name) for name in names]


def sweep_of(places: Sequence[Path]) -> Path | None:
    """Returns the sweep that the folders are, or are the runs of; None if there is no such one."""
    places = [place.expanduser() for place in places]
    if len(places) == 1 and places[0].is_dir() and not (places[0] / "config.yaml").exists():
        return places[0]
    parents = {place.parent for place in places}
    common = next(iter(parents))
    return common if len(parents) == 1 and (common / SWEEP).exists() else None
