"""Tests the counters of compilation, and the folder of the cache of compiled programs."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from rl4p.loop import compilation as counting
from rl4p.loop.compilation import Compilation, compilation, keep_programs

KEPT = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


@pytest.fixture
def counted(monkeypatch):
    """Returns a counter that starts at zero."""
    monkeypatch.setattr(counting, "COUNTED", Compilation())
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


def test_all_of_compiling_takes_time_and_the_compiler_makes_programs(counted):
    counting.count_duration("/jax/core/compile/jaxpr_trace_duration", 0.25, fun_name="f")
    counting.count_duration("/jax/core/compile/backend_compile_duration", 1.5)
    counting.count_duration("/jax/checkpoint/write/duration", 64.0)
    assert counted() == Compilation(seconds=1.75, programs=1)


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
