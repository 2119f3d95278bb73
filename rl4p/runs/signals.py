"""SIGTERM and Ctrl-C ask a run to stop after its step; a second one stops it at once."""

import signal
import threading
from types import FrameType, TracebackType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """While entered, remembers that a signal came, and which.

    Handlers can be set in the main thread only; elsewhere signals do what they did before.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.before: dict[signal.Signals, object] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            self.before = {number: signal.signal(number, self.receive) for number in SIGNALS}
        return self

    def receive(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        self.restore()

    def restore(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self.before = {}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.restore()
