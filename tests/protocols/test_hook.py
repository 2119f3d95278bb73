"""Tests that hooks and trackers have the members of their protocols."""

import inspect

from rl4p.loop.evaluation import Evaluation
from rl4p.protocols.hook import Hook, Mirror, TrackedRun, Tracker
from rl4p.protocols.traits import required_members
from rl4p.runs.checkpoint import Checkpoints
from rl4p.runs.diagnosis import Diagnosis
from rl4p.runs.grading import RecordSamples
from rl4p.runs.outcome import RunOutcome
from rl4p.runs.progress import ProgressBar
from rl4p.runs.tracker import mirror
from rl4p.runs.tracker.background import BackgroundMirror
from rl4p.runs.tracker.local import CSV, SeveralRuns
from rl4p.runs.tracker.wandb import WandB


def test_a_hook_is_called_and_has_an_interval():
    assert required_members(Hook) == {"every": False, "__call__": True}


def test_each_hook_of_a_run_can_be_called():
    for hook in (Evaluation, Checkpoints, Diagnosis, ProgressBar, RecordSamples, RunOutcome):
        assert "__call__" in vars(hook), hook.__name__


def test_each_part_has_the_methods_of_its_protocol_with_their_arguments():
    parts = {Tracker: (CSV, WandB), TrackedRun: (BackgroundMirror, SeveralRuns)}
    parts[Mirror] = (mirror.MLflowMirror,)
    for protocol, classes in parts.items():
        for name in required_members(protocol):
            arguments = list(inspect.signature(getattr(protocol, name)).parameters)
            for each in classes:
                assert list(inspect.signature(getattr(each, name)).parameters) == arguments
