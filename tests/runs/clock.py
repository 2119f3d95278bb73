"""A clock for tests of what a run shows."""


class Clock:
    """A clock that stands still until a test moves it.

    It begins after 34 years: `time.perf_counter` counts from when the machine started, and programs
    that earlier tests compiled at the same seconds would be taken off the times of this one.
    """

    now = 2.0**30

    def __call__(self):
        return self.now
