"""Whole GRPO steps at the shapes of real models."""

from pathlib import Path

from experiments.benchmarks.accelerator.grpo import STEPS, measure_steps
from experiments.benchmarks.accelerator.result import Result
from experiments.benchmarks.accelerator.shapes import shape_of, words_of

TOKENS = 8192  # per microbatch


def words(case: str, folder: Path, *, tiny: bool) -> list[str]:
    shape = shape_of(case, tiny=tiny)
    return words_of(shape, folder, steps=STEPS, tokens=512 if tiny else TOKENS)


def measure(case: str, result: Result, folder: Path) -> None:
    measure_steps(words(case, folder, tiny=result.tiny), result)
