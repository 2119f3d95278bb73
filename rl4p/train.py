"""`python -m rl4p.train`: trains a policy; see --help."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from omegaconf import DictConfig

from rl4p import configuration


def job(config: DictConfig) -> Any:
    from rl4p.distributed.processes import (
        blaming,  # imports JAX, which --help and --cfg do not need
    )
    from rl4p.runs.run import run

    with blaming():
        return run(config)


def join(config: DictConfig) -> AbstractContextManager[bool]:
    """Joins the other processes of the run; yields whether this process is the first."""
    if {config.mesh.coordinator, config.mesh.processes, config.mesh.process} == {None}:
        return nullcontext(True)
    from rl4p.distributed.processes import join

    return join(config)


def main() -> None:
    """Runs the command line."""
    configuration.main("train", job, join=join)


if __name__ == "__main__":
    main()
