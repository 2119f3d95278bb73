"""Median times of calls."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax


def median_seconds(call: Callable[[], Any], repeats: int = 5) -> float:
    """Returns the median time of a call until its arrays are ready, after two warm-up calls."""
    return in_turn([call], repeats)[0]


def in_turn(calls: list[Callable[[], Any]], repeats: int = 5) -> list[float]:
    """Returns the median time of each call; they take turns, so that a slow minute slows all."""
    rounds = [[seconds(call) for call in calls] for _ in range(2 + repeats)]
    return [statistics.median(times) for times in zip(*rounds[2:], strict=True)]


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start
