"""Errors of what only shows or copies a run, which must not end it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rl4p.base.console import VisibleConsole
from rl4p.base.errors import InputError, RunError
from rl4p.protocols.hook import Hook, StepInfo
from rl4p.runs.signals import discard_output

log = logging.getLogger(__name__)

PLAIN_WIDTH = 200  # characters of the longest row of a table


@dataclass(frozen=True)
class Tolerance:
    """Makes the first error of each part a warning, and ignores its later errors.

    An `InputError` or a `RunError` is raised: the user can correct the first, and the second says
    that the record of the run could not be written.

    Attributes:
      failed: the names of the parts that failed.
    """

    failed: set[str] = field(default_factory=set)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Makes an error of a part a warning, in place of raising it."""
        try:
            yield
        except (InputError, RunError):
            raise
        except Exception as error:  # noqa: BLE001 - the run continues after any error
            if name not in self.failed:
                log.warning("%s failed, and the run continues: %r", name, error)
            self.failed.add(name)


class RunConsole(VisibleConsole):
    """A console of a run, which goes on when nobody reads its output any more, as in `| head`.

    The console of rich ends the process. Without a terminal no row of a table is divided.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if not self.is_terminal:
            self.width = max(self.width, PLAIN_WIDTH)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        discard_output()
        log.warning("Nobody reads the output any more, and the run continues.")


class Tolerated:
    """A hook that only shows a run or records its samples, and whose errors are warnings."""

    def __init__(self, hook: Hook, name: str) -> None:
        self.hook, self.name, self.every = hook, name, hook.every
        self.tolerance = Tolerance()

    def __call__(self, info: StepInfo) -> None:
        with self.tolerance.of(self.name):
            self.hook(info)
