"""A trace of a few steps, for Perfetto: where the time of a step goes, operation by operation."""

from pathlib import Path

import jax

from rl4p.types import StepInfo

COMPILING, TRACED = 2, 3  # steps


class Profiler:
    """A hook, and a context that ends a trace that is cut short.

    It traces three steps, once two have compiled what there is to compile, or the last step of a
    shorter run.

    Attributes:
      every: 1: it counts the steps.
      folder: where the trace is written, as `perfetto_trace.json.gz` some folders down.
    """

    def __init__(self, folder: Path, begin: int, steps: int) -> None:
        self.every = 1
        self.folder = folder
        self.first = max(begin, min(begin + COMPILING, steps - 1))
        self.last = min(self.first + TRACED, steps)
        self.running = False
        self.start_after(begin)

    def __enter__(self) -> "Profiler":
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def __call__(self, info: StepInfo) -> None:
        if info.step == self.last:
            self.stop()
        self.start_after(info.step)

    def start_after(self, step: int) -> None:
        if step == self.first < self.last:
            # Frames of Python would fill the trace, and hooks in threads that come and go have
            # ended a run of Python 3.11 with signal 11.
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0
            jax.profiler.start_trace(
                self.folder, create_perfetto_trace=True, profiler_options=options
            )
            self.running = True

    def stop(self) -> None:
        if self.running:
            jax.profiler.stop_trace()
            self.running = False
