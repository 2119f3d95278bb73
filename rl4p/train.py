"""`python -m rl4p.train`: trains a policy; see --help. From Python, `rl4p.train([...])` does it."""

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from rl4p.base.errors import importing

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rl4p.runs.record import Record


def job(config: "DictConfig") -> float:
    """Runs or resumes an experiment and returns what a search maximizes."""
    with importing():
        from rl4p.distributed.processes import (
            reporting_errors,  # imports JAX, which --help and --cfg do not need
        )
        from rl4p.runs.outcome import objective
        from rl4p.runs.run import run
        from rl4p.tools.planning.estimate_report import needed
        from rl4p.tools.planning.report import refuse_what_does_not_fit

    with reporting_errors():
        return objective(run(config, check=refuse_what_does_not_fit, estimate=needed))


def join(config: "DictConfig") -> AbstractContextManager[bool]:
    """Joins the other processes of the run; yields whether this process is the first."""
    if {config.mesh.coordinator, config.mesh.processes, config.mesh.process} == {None}:
        return nullcontext(True)
    from rl4p.distributed.processes import join_processes

    return join_processes(config)


def after_sweep(folder: Path, runs: Sequence[Path]) -> None:
    """Prints and writes the comparison of the runs of a sweep that have finished."""
    from rl4p.tools.comparison.job import compare_runs

    compare_runs(folder, runs)


def main() -> None:
    """Runs the command line."""
    with importing():
        from rl4p import command

    command.main("train", job, join=join, after_sweep=after_sweep)


class TrainModule(ModuleType):
    """The class of this module, which makes it callable."""

    def __call__(self, overrides: Sequence[str] = (), *, config_dir: str | None = None) -> "Record":
        """Trains as `python -m rl4p.train` does with these words, and returns the run's record.

        Args:
          overrides: the words of the command line, such as `steps=20`, without flags.
          config_dir: a folder with further YAML files (`--config-dir`).

        Raises:
          InputError, RunError, Stopped: as the command reports them.
        """
        from rl4p import command
        from rl4p.runs.record import Record

        return Record(command.call("train", job, overrides, join, config_dir))


sys.modules[__name__].__class__ = TrainModule  # as the data model of Python allows

if __name__ == "__main__":
    main()
