"""A clock for tests of what a run shows."""


class Clock:
    """A clock that stands still until a test moves it."""

    now = 1000.0

    def __call__(self):
        return self.now
