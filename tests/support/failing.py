"""Rows of metrics, and reward terms, of runs that fail in one way."""

import math
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from rl4p.configuration import compose

# A step of a run in which nothing is wrong.
SOUND = {
    "reward/mean": 0.5,
    "reward/std": 0.4,
    "reward/invalid": 0.0,
    "rollout/truncated": 0.1,
    "rollout/logprob_gap_mean": 1e-6,
    "advantage/zero_std_groups": 0.3,
    "advantage/max": 2.0,
    "staleness/mean": 0.0,
    "staleness/max": 0.0,
    "update/loss": 1e-9,
    "update/grad_norm": 0.5,
    "update/skipped": 0.0,
    "update/entropy": 0.4,
    "update/approx_kl": 0.001,
    "update/kl": 0.01,
    "update/clip_low": 0.01,
    "update/clip_high": 0.01,
}


def config_of(*overrides: str) -> dict[str, Any]:
    return OmegaConf.to_container(compose(overrides), resolve=True)  # type: ignore[return-value]


def late(value, otherwise):
    """A value from step 21 on, and another one before."""
    return lambda step: value if step > 20 else otherwise


def rows_of(steps: int, **changes: Any) -> list[dict[str, Any]]:
    """Returns rows with changed metrics; a function gets the step. `_` stands for `/`."""
    rows: list[dict[str, Any]] = [{"step": 0, "eval/arithmetic/pass_at_1": 0.1}]
    for step in range(1, steps + 1):
        row = SOUND | {"step": step, "reward/mean": 0.5 + 0.01 * step}
        for name, value in changes.items():
            row[name.replace("_", "/", 1)] = value(step) if callable(value) else value
        rows.append(row)
    return rows


@dataclass(frozen=True, kw_only=True)
class Always:
    """A grader that gives every sample the same grade."""

    weight: float = 1.0

    def __call__(self, episodes):
        return [1.0 for _ in episodes]


@dataclass(frozen=True, kw_only=True)
class Fails:
    """A grader that cannot grade some samples."""

    weight: float = 1.0

    def __call__(self, episodes):
        return [math.nan if i % 10 == 0 else 0.0 for i, _ in enumerate(episodes)]
