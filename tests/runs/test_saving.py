"""Tests which errors are hidden while a checkpoint is written; test_checkpoint.py has the rest."""

import sys
from types import SimpleNamespace

from rl4p.runs.saving import without_closed_loops


def test_only_errors_of_closed_event_loops_are_hidden(monkeypatch):
    shown = []
    monkeypatch.setattr(sys, "unraisablehook", lambda each: shown.append(str(each.exc_value)))
    before = sys.unraisablehook
    with without_closed_loops():
        for text in ("Event loop is closed", "something else"):
            sys.unraisablehook(SimpleNamespace(exc_value=RuntimeError(text)))
    assert shown == ["something else"]
    assert sys.unraisablehook is before
