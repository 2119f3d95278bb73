"""Fixtures that write the folders of runs without training, for statistics, faults and scale."""

import pytest

from tests.support.compared_runs import write_run


@pytest.fixture
def algorithm():
    """Returns a function that writes the runs of one algorithm, one for each value."""

    def write(sweep, name, values, first=0, **others):
        target = {"_target_": f"rl4p.advantage.{name}.{name.upper()}", "epsilon": 1e-4}
        return [
            write_run(
                sweep / f"{name}-{seed}",
                seed=seed,
                last=value,
                overrides=[f"advantage={name}"],
                config={"advantage": target},
                choices={"advantage": name, "hydra/launcher": "basic"},
                **others,
            )
            for seed, value in enumerate(values, first)
        ]

    return write


@pytest.fixture
def sweep(tmp_path, algorithm):
    """Returns the folder of a sweep: rloo is better than grpo for each of three seeds."""
    algorithm(tmp_path / "sweep", "grpo", [0.70, 0.72, 0.71])
    algorithm(tmp_path / "sweep", "rloo", [0.90, 0.91, 0.92])
    (tmp_path / "sweep" / "multirun.yaml").write_text("hydra: {}\n")
    return tmp_path / "sweep"
