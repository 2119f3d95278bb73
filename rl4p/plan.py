"""`python -m rl4p.plan`: estimates the cost of a run without running it; see --help.

The arguments are overrides as for `rl4p.train`; run=FOLDER plans with the configuration of a run.
The plan compiles the functions of a step for the devices of `mesh` and reports how much memory they
need on each device. A named slice of TPUs, such as mesh=v5e_16, need not be present (pip install
'rl4p[plan]'). With estimate=true nothing is compiled: memory and time are estimated in seconds,
also for absent GPUs (mesh=rtx4090_1). The report is also written to plan.json, in out=FOLDER if it
is given. The exit code is 1 if the run does not fit.
"""

from typing import Any

from omegaconf import DictConfig

from rl4p import command


def job(config: DictConfig) -> Any:
    from rl4p.tools.planning.report import (
        plan,  # imports JAX, which --help and --cfg do not need
    )

    return plan(config)


def main() -> None:
    """Runs the command line."""
    command.main("plan", job, reads_runs=True)


if __name__ == "__main__":
    main()
