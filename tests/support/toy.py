"""A small tree of YAML files, with targets that are fast to import."""

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from omegaconf import DictConfig

from rl4p import command, configuration
from rl4p.base.errors import InputError
from rl4p.configuration import schema
from rl4p.configuration.targets import instantiate
from rl4p.configuration.trust import CONF

TOY = """
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

@dataclass(frozen=True, kw_only=True)
class Part:
    size: int = 1
    rate: float = 0.5
    flag: bool = False
    mode: Literal["mean", "total"] = "mean"
    limit: int | None = None
    names: tuple[str, ...] = ()
    listed: list[int] = field(default_factory=list)
    numbers: Sequence[int] = ()
    inner: Any = None
    typed: "Part | None" = None

    def __post_init__(self):
        if self.size == 13:
            raise ValueError("size is unlucky.")

@dataclass(frozen=True, kw_only=True)
class Checkpoint(Part):
    restore: str = "newest"

@dataclass(frozen=True, kw_only=True)
class Optimizer(Part):
    learning_rate: float

@dataclass(frozen=True, kw_only=True)
class Terms:
    terms: Mapping[str, Any]

@dataclass(frozen=True, kw_only=True)
class Term:
    weight: float

def anything(first: int = 1, **more):
    return first, more
"""
BROKEN = "raise RuntimeError('half\\nfinished')"
FILES = {
    "rollout/plain": "_target_: toy.Part\nsize: 1\nrate: 0.5",
    "rollout/needy": "_target_: toy.Part\nsize: ???",
    "reward/terms": "_target_: toy.Terms\nterms:\n  right: {_target_: toy.Term, weight: 1.0}\n"
    "  tidy: {_target_: toy.Term, weight: 0.1}",
    "checkpoint/plain": "_target_: toy.Checkpoint\nsize: 1\nrestore: newest",
    "optimizer/plain": "_target_: toy.Optimizer\nsize: ${steps}\nlearning_rate: 0.1",
    "debug/off": "check_batches: false\nprofile: false",
    "plan/once": "estimate: false\nsearch: false\nmemory_gib: null\nall_widths: false\n"
    "effort: -1.0\ncheck: false",
    "experiment/good": "# @package _global_\ndefaults: [override /advantage: other]\nseed: 7",
    "experiment/misspelt_root": "# @package _global_\nstepss: 7",
    "experiment/misspelt_section": "# @package _global_\nevaluation: {everyy: 7}",
    "experiment/misspelt_option": "# @package _global_\nadvantage: {ratee: 7}",
    "experiment/no_option": "# @package _global_\ndefaults: [override /advantage: othr]",
    "experiment/no_group": "# @package _global_\ndefaults: [override /advantagee: other]",
    "experiment/callback": "# @package _global_\nhydra: {callbacks: {x: {_target_: os.system}}}",
    "experiment/resume": "# @package _global_\nresume: somewhere",
    "experiment/not_yaml": "# @package _global_\nseed: [1",
    "sweep/none": "# @package _global_",
    "sweep/seeds": "# @package _global_\n"
    "hydra: {mode: MULTIRUN, sweeper: {params: {seed: '0,1,2'}}}",
}


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    (folder / "toy.py").write_text(TOY)
    (folder / "broken.py").write_text(BROKEN)
    (folder / "lacking.py").write_text("import absent_library")
    files = dict(FILES)
    for group in schema.GROUPS:
        files.setdefault(f"{group}/plain", "_target_: toy.Part\nsize: 1\nrate: 0.5")
    files["advantage/other"] = "_target_: toy.Part\nrate: 0.25"
    chosen = [{group: "terms" if group == "reward" else "plain"} for group in schema.GROUPS]
    defaults = [
        *chosen,
        {"debug": "off"},
        {"plan": "once"},
        {"sweep": "none"},
        "_self_",
        {"experiment": None},
    ]
    defaults += [{f"override hydra/{name}_logging": "quiet"} for name in ("job", "hydra")]
    shutil.copytree(CONF / "hydra", folder / "conf" / "hydra")
    root = yaml.safe_load((CONF / "config.yaml").read_text())
    root |= {"defaults": defaults, "seed": 0, "steps": 5, "trusted_targets": ["toy"]}
    root["hydra"].pop("callbacks", None)
    root["hydra"]["run"]["dir"] = "outputs/runs/one"
    root["hydra"]["sweep"]["dir"] = "outputs/sweeps/one"
    files["config"] = yaml.safe_dump(root)
    for name, text in files.items():
        path = folder / "conf" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return folder


@pytest.fixture
def toy(
    toy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SimpleNamespace]:
    """Yields `compose(*overrides)` and `run(*argv, job=)`, which returns the exit code."""
    monkeypatch.syspath_prepend(str(toy_folder))
    monkeypatch.chdir(tmp_path)
    conf = toy_folder / "conf"
    monkeypatch.setattr(logging, "raiseExceptions", True)  # an entry point sets it
    root, jobs = logging.getLogger(), []

    def refusal(*overrides: str) -> str:
        with pytest.raises(InputError) as refused:
            compose(*overrides)
        assert "\n" not in str(refused.value)
        return str(refused.value)

    def compose(*overrides: str) -> DictConfig:
        return configuration.compose(overrides, conf=conf)

    def run(*argv: str, job: Callable[[DictConfig], Any] = jobs.append, **options: Any) -> int:
        try:
            command.main("toy", job, argv=argv, conf=conf, **options)
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    before = root.handlers[:], root.level
    yield SimpleNamespace(
        compose=compose, refusal=refusal, run=run, jobs=jobs, conf=conf, folder=tmp_path
    )
    for handler in set(root.handlers) - set(before[0]):  # Hydra leaves the log file open
        handler.close()
    root.handlers[:], level = before
    root.setLevel(level)
    for logger in root.manager.loggerDict.values():  # hydra/job_logging=disabled disables them
        if isinstance(logger, logging.Logger):
            logger.disabled = False
    for name in ("absl", "asyncio"):  # which have only the handler of the file
        logger = logging.getLogger(name)
        for handler in logger.handlers[:]:
            logger.removeHandler(handler)
        logger.propagate = True


@pytest.fixture
def canary(toy, monkeypatch) -> Path:
    """The file that hostile code writes, from a module that the working directory offers."""
    file = toy.folder / "canary"
    package = toy.folder / "hostile"
    package.mkdir()
    (package / "__init__.py").write_text(
        f"open({str(file)!r}, 'w').close()\ndef call(**rest): pass\n"
    )
    monkeypatch.syspath_prepend(str(toy.folder))
    return file


@pytest.fixture
def attack(toy, canary, capsys):
    """Returns a function that runs a command line, whose job builds, and returns the refusal."""

    def run(*argv: str) -> str:
        assert toy.run(*argv, job=lambda config: instantiate(config.rollout)) == 2
        assert not canary.exists()
        (sentence,) = capsys.readouterr().err.splitlines()
        return sentence

    return run
