from collections import defaultdict

import jax
import jax.numpy as jnp

import rl4p.loop.compilation
import rl4p.loop.stopwatch
from rl4p.loop.compilation import WORK, Compilation, Spans
from rl4p.loop.stopwatch import Stopwatch


def test_times_of_one_name_add_up_and_the_step_holds_them_all():
    watch = Stopwatch()
    with watch("rollout"), watch("reward"):
        pass
    metrics = watch.metrics()
    of_step = {"time/step", "time/compile", "time/compilations"}
    assert metrics.keys() == {"time/rollout", "time/reward"} | of_step
    assert 0 <= metrics["time/reward"] <= metrics["time/rollout"] <= metrics["time/step"]
    watch.seconds["rollout"] = 1e6
    with watch("rollout"):
        pass
    assert watch.seconds["rollout"] >= 1e6


def test_programs_are_counted_where_they_are_compiled_and_not_where_they_run_again():
    program = jax.jit(lambda x: x * 2 + 1)
    x, y = jnp.arange(3), jnp.arange(5)
    for argument, expected in ((x, 1), (x, 0), (y, 1), (y, 0)):
        watch = Stopwatch()
        program(argument)
        metrics = watch.metrics()
        assert metrics["time/compilations"] == expected
        assert (metrics["time/compile"] > 0) == (expected > 0)


def test_seconds_are_those_of_the_clock_since_the_step_began(monkeypatch):
    clock = iter([100.0, 101.0, 103.5, 110.0, 111.0, 120.0])
    monkeypatch.setattr(rl4p.loop.stopwatch, "clock", lambda: next(clock))
    counts = iter([Compilation(programs=7), Compilation(programs=9)])
    monkeypatch.setattr(rl4p.loop.stopwatch, "compilation", lambda: next(counts))
    monkeypatch.setattr(rl4p.loop.compilation, "COMPILING", compiling := defaultdict(Spans))
    compiling[WORK.get()].add(99.0, 100.25)  # of the step before, but for 0.25
    compiling[WORK.get()].add(103.0, 104.0)  # half of it in the first update
    compiling["sampling"].add(101.0, 120.0)  # another thread, in the background
    watch = Stopwatch()
    for _ in range(2):
        with watch("update"):
            pass
    assert watch.metrics() == {
        "time/update": 2.0 + 1.0,
        "time/step": 20.0,
        "time/compile": 1.25,
        "time/compilations": 2.0,
    }
