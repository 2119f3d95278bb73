"""A Perfetto trace of a few steps, with the time of every operation."""

from pathlib import Path

import jax

from rl4p.protocols.hook import StepInfo

COMPILING, TRACED = 2, 3  # steps


class Profiler:
    """A hook that traces three steps. As a context manager it ends an unfinished trace.

    The trace starts after two steps, in which the functions are compiled. In a shorter run it
    covers the last step.

    Attributes:
      every: 1, because the hook counts the steps itself.
      folder: the folder of the trace, which is in a subfolder, as `perfetto_trace.json.gz`.
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
            # Python frames would fill the trace. In Python 3.11 the Python tracer also crashed a
            # run (signal 11) when threads started and ended.
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
