"""A clock for tests of what a run shows."""


class Clock:
    """A clock that stands still until a test moves it.

    It begins at 34 years, because `time.perf_counter` counts from the start of the machine. If the
    clock began at 1,000 s, compilations of other tests, made at that time, would count in this one.
    """

    now = 2.0**30

    def __call__(self):
        return self.now
