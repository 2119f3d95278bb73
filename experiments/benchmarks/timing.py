"""Medians of seconds."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax


def median_seconds(call: Callable[[], Any], repeats: int = 5) -> float:
    """Of a call, until its arrays are there; after two calls that are not counted."""
    return in_turn([call], repeats)[0]


def in_turn(calls: list[Callable[[], Any]], repeats: int = 5) -> list[float]:
    """Of each call, made in turn, so that a slow minute of the machine is in all of them."""
    rounds = [[seconds(call) for call in calls] for _ in range(2 + repeats)]
    return [statistics.median(times) for times in zip(*rounds[2:], strict=True)]


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start
