"""`python -m rl4p.train`: trains a policy; see --help."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from rl4p.errors import ended_by_interrupt

if TYPE_CHECKING:
    from omegaconf import DictConfig


def job(config: "DictConfig") -> float:
    """Runs or resumes an experiment and returns what a search maximizes."""
    with ended_by_interrupt():
        from rl4p.distributed.processes import (
            reporting_errors,  # imports JAX, which --help and --cfg do not need
        )
        from rl4p.runs.run import run
        from rl4p.runs.sweep import objective

    with reporting_errors():
        return objective(run(config))


def join(config: "DictConfig") -> AbstractContextManager[bool]:
    """Joins the other processes of the run; yields whether this process is the first."""
    if {config.mesh.coordinator, config.mesh.processes, config.mesh.process} == {None}:
        return nullcontext(True)
    from rl4p.distributed.processes import join_processes

    return join_processes(config)


def after_sweep(folder: Path, runs: Sequence[Path]) -> None:
    """Compares the runs of a sweep that have finished."""
    from rl4p.runs.sweep import compare_runs

    compare_runs(folder, runs)


def main() -> None:
    """Runs the command line."""
    with ended_by_interrupt():
        from rl4p import configuration

    configuration.main("train", job, join=join, after_sweep=after_sweep)


if __name__ == "__main__":
    main()
