"""Whole GRPO steps at the shapes of real models."""

from pathlib import Path

from experiments.benchmarks.accelerator.grpo import STEPS, measure_steps
from experiments.benchmarks.accelerator.result import Result
from experiments.benchmarks.accelerator.shapes import shape_of, words_of

TOKENS = 8192  # per microbatch


def words(case: str, folder: Path, *, tiny: bool) -> list[str]:
    shape, _, widths = case.partition("-")
    words = words_of(
        shape_of(shape, tiny=tiny), folder, steps=STEPS, tokens=512 if tiny else TOKENS
    )
    return words if widths else [*words, "update.microbatch_widths=1"]


def measure(case: str, result: Result, folder: Path) -> None:
    measure_steps(words(case, folder, tiny=result.tiny), result)
