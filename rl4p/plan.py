"""`python -m rl4p.plan`: estimates the cost of a run without running it; see --help.

The arguments are those of `rl4p.train`. The plan compiles the functions of a step for the devices
of `mesh` and reports how much memory they need on each device. A named slice, such as mesh=v5e_16,
need not be present (pip install 'rl4p[plan]'). The report is also written to plan.json in the run
folder. The exit code is 1 if the run does not fit.
"""

from typing import Any

from omegaconf import DictConfig

from rl4p import configuration


def job(config: DictConfig) -> Any:
    from rl4p.experiment.planning.report import (
        plan,  # imports JAX, which --help and --cfg do not need
    )

    return plan(config)


def main() -> None:
    """Runs the command line."""
    configuration.main("plan", job)


if __name__ == "__main__":
    main()
