"""`python -m rl4p.train`: trains a policy as configured; see --help."""

from typing import Any

from omegaconf import DictConfig

from rl4p import configuration


def job(config: DictConfig) -> Any:
    from rl4p.run import run  # imports JAX, which printing a configuration should not

    return run(config)


def main() -> None:
    """The command line."""
    configuration.main("train", job)


if __name__ == "__main__":
    main()
