"""`python -m rl4p.plan`: what a run costs on its devices, without running it; see --help.

It takes the arguments of `rl4p.train`, compiles the functions of a step for the devices of `mesh`
(for named slices, such as mesh=v5e_16, without having any: pip install 'rl4p[plan]'), and says what
they take of each device's memory. The same stands in plan.json in the run's folder. Exit code 1:
it does not fit.
"""

from typing import Any

from omegaconf import DictConfig

from rl4p import configuration


def job(config: DictConfig) -> Any:
    from rl4p.planning.report import plan  # imports JAX, which printing a configuration should not

    return plan(config)


def main() -> None:
    """The command line."""
    configuration.main("plan", job)


if __name__ == "__main__":
    main()
