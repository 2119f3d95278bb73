"""Counters of compilation time, and the cache of compiled programs."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.monitoring


@dataclass(kw_only=True)
class Compilation:
    """Counters of compilation in this process.

    Attributes:
      seconds: the time spent on tracing, lowering and compiling, or on reading from the cache.
      programs: the number of programs compiled or read from the cache.
      from_cache: the number read from the cache. It shows whether the cache works.
    """

    seconds: float = 0.0
    programs: int = 0
    from_cache: int = 0

    def since(self, before: "Compilation") -> "Compilation":
        return Compilation(
            seconds=self.seconds - before.seconds,
            programs=self.programs - before.programs,
            from_cache=self.from_cache - before.from_cache,
        )


COUNTED = Compilation()


def compilation() -> Compilation:
    """Returns a copy of the counters."""
    return replace(COUNTED)


def count_duration(event: str, duration_secs: float, **_: Any) -> None:
    if event.startswith("/jax/core/compile/"):
        COUNTED.seconds += duration_secs
    if event == "/jax/core/compile/backend_compile_duration":  # sent for reads of the cache too
        COUNTED.programs += 1


def count_event(event: str, **_: Any) -> None:
    if event == "/jax/compilation_cache/cache_hits":
        COUNTED.from_cache += 1


jax.monitoring.register_event_duration_secs_listener(count_duration)
jax.monitoring.register_event_listener(count_event)


def keep_programs() -> None:
    """Makes JAX store compiled programs in the user's cache folder and read them from there.

    JAX's own variables take precedence: `JAX_COMPILATION_CACHE_DIR` names another folder, and
    `JAX_ENABLE_COMPILATION_CACHE=false` disables the cache.
    """
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(caches / "rl4p" / "programs"))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # many are small
