"""Tests the counters of compilation, and the folder of the cache of compiled programs."""

from collections import defaultdict
from contextvars import Context
from functools import partial
from itertools import chain, pairwise
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rl4p.loop.stopwatch
from rl4p.loop import stopwatch as counting
from rl4p.loop.stopwatch import (
    WORK,
    Compilation,
    Spans,
    Stopwatch,
    Times,
    WorkingTime,
    compilation,
    keep_programs,
)
from rl4p.reward.live_terms import TermThread

KEPT = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


@pytest.fixture
def counted(monkeypatch):
    """Returns a counter that starts at zero."""
    monkeypatch.setattr(counting, "COUNTED", Compilation())
    monkeypatch.setattr(counting, "COMPILING", defaultdict(Spans))
    return counting.compilation


def test_what_was_counted_since_is_a_difference_of_each():
    before = Compilation(seconds=1.0, programs=2, from_cache=1)
    after = Compilation(seconds=4.5, programs=7, from_cache=2)
    assert after.since(before) == Compilation(seconds=3.5, programs=5, from_cache=1)


def test_counts_that_were_asked_for_do_not_grow(counted):
    before = counted()
    counting.count_event("/jax/compilation_cache/cache_hits")
    assert before == Compilation()
    assert counted() == Compilation(from_cache=1)


@pytest.fixture
def event(monkeypatch):
    """Returns a function that sends an event of JAX that ends at a time."""

    def send(name, start, end, **others):
        monkeypatch.setattr(counting, "clock", lambda: end)
        counting.count_duration(name, end - start, **others)

    return send


TRACE = "/jax/core/compile/jaxpr_trace_duration"
COMPILE = "/jax/core/compile/backend_compile_duration"


def test_all_of_compiling_takes_time_and_the_compiler_makes_programs(counted, event):
    event(TRACE, 1.0, 1.25, fun_name="f")
    event(COMPILE, 2.0, 3.5)
    event("/jax/checkpoint/write/duration", 4.0, 68.0)
    assert counted() == Compilation(seconds=1.75, programs=1)


def test_a_program_compiled_while_another_is_traced_takes_its_time_once(counted, event):
    event(COMPILE, 2.0, 3.0)
    event(COMPILE, 4.0, 5.0)
    event(TRACE, 1.0, 6.0)
    assert counted() == Compilation(seconds=5.0, programs=2)
    assert counting.compiled_within(2.5, 10.0) == 3.5


def test_work_in_the_background_delays_only_the_thread_that_waits_for_it(counted, event):
    def sample():
        WORK.set("sampling")
        event(COMPILE, 2.0, 6.0)
        return counting.compiled_within(0.0, 10.0)

    thread = TermThread("a thread")
    assert Context().run(sample) == 4.0
    assert counting.compiled_within(0.0, 10.0) == 0.0
    assert counting.waited_for(4.0, 10.0, ["sampling"]) == 2.0
    assert counting.compiled_within(0.0, 10.0) == 2.0
    assert counted().seconds == 4.0
    thread.start(partial(event, COMPILE, 7.0, 8.0), None)()  # this thread's work
    thread.close()
    assert counting.compiled_within(0.0, 10.0) == 3.0


def test_spans_in_any_order_are_joined_and_counted_once():
    draw = np.random.default_rng(0)
    for _ in range(50):
        spans, covered = Spans(), np.zeros(40, bool)
        for _ in range(12):
            start, end = np.sort(draw.choice(41, 2, replace=False)).tolist()
            assert spans.add(start, end) == (~covered[start:end]).sum()
            covered[start:end] = True
            start, end = np.sort(draw.choice(41, 2, replace=False)).tolist()
            assert spans.within(start, end) == covered[start:end].sum()
        edges = list(chain(*zip(spans.starts, spans.ends, strict=True)))
        assert all(one < other for one, other in pairwise(edges))


def test_only_hits_of_the_cache_are_programs_from_it(counted):
    counting.count_event("/jax/compilation_cache/cache_misses")
    counting.count_event("/jax/compilation_cache/compile_requests_use_cache")
    assert counted() == Compilation()


def test_a_program_compiled_before_is_read_from_the_cache():
    x = jnp.arange(7.0)
    jax.jit(lambda x: x * 31 + 7)(x)  # the program is in the cache now, perhaps from another run
    before = compilation()
    jax.jit(lambda x: x * 31 + 7)(x)
    found = compilation().since(before)
    assert (found.programs, found.from_cache) == (1, 1)
    assert found.seconds > 0


@pytest.fixture
def keep(monkeypatch):
    """Yields a function that returns JAX's cache settings in an environment."""
    before = {name: getattr(jax.config, name) for name in KEPT}

    def settings(**environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
        for name, value in zip(KEPT, ("as it was", 1.0), strict=True):
            jax.config.update(name, value)
        keep_programs()
        return tuple(getattr(jax.config, name) for name in KEPT)

    yield settings
    for name, value in before.items():
        jax.config.update(name, value)


UNSET = {
    "JAX_COMPILATION_CACHE_DIR": None,
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": None,
    "XDG_CACHE_HOME": None,
}


def test_programs_stay_in_the_users_cache_folder(keep, monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert keep(**UNSET) == ("/home/somebody/.cache/rl4p/programs", 0.0)
    xdg = UNSET | {"XDG_CACHE_HOME": "/caches"}
    assert keep(**xdg) == (str(Path("/caches/rl4p/programs")), 0.0)


def test_the_variables_of_jax_go_before(keep):
    assert keep(**UNSET | {"JAX_COMPILATION_CACHE_DIR": "/mine"}) == ("as it was", 0.0)
    seconds = UNSET | {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "5", "XDG_CACHE_HOME": "/c"}
    assert keep(**seconds) == ("/c/rl4p/programs", 1.0)


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
    monkeypatch.setattr(rl4p.loop.stopwatch, "COMPILING", compiling := defaultdict(Spans))
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


def test_work_counts_for_the_times_in_which_it_is_done(monkeypatch):
    clock = iter([0.0, 1.0, 8.0, 20.0])
    monkeypatch.setattr(counting, "clock", lambda: next(clock))
    monkeypatch.setattr(counting, "COMPILING", defaultdict(Spans))
    working = WorkingTime("sampling")  # at 0
    working.begin()  # at 1
    assert working.read(4.0) == Times(busy=3.0, idle=1.0)
    working.end()  # at 8
    assert working.read(10.0) == Times(busy=4.0, idle=2.0)
    assert working.read(15.0) == Times(busy=0.0, idle=5.0)
    working.end()  # at 20, without work
    assert working.read(21.0) == Times(busy=0.0, idle=6.0)


def test_compilation_is_neither_work_nor_idle(monkeypatch):
    clock = iter([0.0, 1.0])
    monkeypatch.setattr(counting, "clock", lambda: next(clock))
    monkeypatch.setattr(counting, "COMPILING", compiling := defaultdict(Spans))
    working = WorkingTime("sampling")  # at 0
    working.begin()  # at 1
    compiling["sampling"].add(2.0, 3.5)
    compiling["grading"].add(1.0, 4.0)  # another thread's
    assert working.read(5.0) == Times(busy=2.5, idle=1.0)
    assert working.read(6.0) == Times(busy=1.0, idle=0.0)
