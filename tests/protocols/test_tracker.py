"""Tests that the trackers of this package have the methods of their protocols."""

import inspect

from rl4p.protocols.members import required_members
from rl4p.protocols.tracker import Mirror, TrackedRun, Tracker
from rl4p.runs.tracker import mirror
from rl4p.runs.tracker.background import BackgroundMirror
from rl4p.runs.tracker.csv import CSV
from rl4p.runs.tracker.several import SeveralRuns
from rl4p.runs.tracker.wandb import WandB


def test_each_part_has_the_methods_of_its_protocol_with_their_arguments():
    parts = {Tracker: (CSV, WandB), TrackedRun: (BackgroundMirror, SeveralRuns)}
    parts[Mirror] = (mirror.MLflowMirror,)
    for protocol, classes in parts.items():
        for name in required_members(protocol):
            arguments = list(inspect.signature(getattr(protocol, name)).parameters)
            for each in classes:
                assert list(inspect.signature(getattr(each, name)).parameters) == arguments
