"""What an attacker prepares: YAML files, and the folders of runs that never were."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from rl4p.configuration.composition import Composer
from rl4p.configuration.schema import without_hydra


def cases(first, *others):
    """Returns the values of a parameter; those after the first are slow tests."""
    slow = pytest.mark.slow
    rest = [x if isinstance(x, tuple) else (x,) for x in others]
    return [first, *(pytest.param(*x, marks=slow, id=str(x[0])[:40]) for x in rest)]


def write(folder: Path, **files: str) -> str:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("# @package _global_\n" + text)
    return str(folder)


def recorded(toy, *overrides: str, **changed: object) -> Path:
    """Returns the folder of a run that claims these overrides and changes of its configuration."""
    folder = toy.folder / "theirs"
    (folder / ".hydra").mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("")
    OmegaConf.save(list(overrides), folder / ".hydra" / "overrides.yaml")
    config = without_hydra(Composer(toy.conf).load([]))
    for key, value in changed.items():
        OmegaConf.update(config, key, value, force_add=True)
    OmegaConf.save(config, folder / ".hydra" / "config.yaml")
    return folder
