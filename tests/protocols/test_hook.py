"""Tests that the hooks of a run have the members of their protocol."""

from rl4p.loop.evaluation import Evaluation
from rl4p.protocols.hook import Hook
from rl4p.protocols.members import required_members
from rl4p.runs.checkpoint import Checkpoints
from rl4p.runs.diagnosis import Diagnosis
from rl4p.runs.outcome import RunOutcome
from rl4p.runs.progress import ProgressBar
from rl4p.runs.recording import RecordSamples


def test_a_hook_is_called_and_has_an_interval():
    assert required_members(Hook) == {"every": False, "__call__": True}


def test_each_hook_of_a_run_can_be_called():
    for hook in (Evaluation, Checkpoints, Diagnosis, ProgressBar, RecordSamples, RunOutcome):
        assert "__call__" in vars(hook), hook.__name__
