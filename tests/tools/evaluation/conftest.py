"""A small trained run, and small evaluations."""

from pathlib import Path

import pytest

from rl4p.command.evaluation import read
from rl4p.evaluate import main
from rl4p.tools.evaluation.job import build_evaluated
from tests.support import runs

command, train = runs.command, runs.train

# With samples, an average, a task beside the data, and a grader that random responses satisfy.
TRAINED = (
    *("steps=3", "ema.decay=0.5", "ema.use_for_eval=false", "checkpoint.every=1"),
    *("checkpoint.keep=3", "evaluation.samples=4", "+data@evaluation.tasks.long=arithmetic"),
    *("evaluation.tasks.long.digits=4", "evaluation.tasks.long.held_out_size=5"),
)


@pytest.fixture(scope="session")
def run(train, tmp_path_factory) -> Path:
    """Returns the folder of a run of three steps, each with a checkpoint and an evaluation."""
    folder = tmp_path_factory.mktemp("evaluated") / "run"
    process = train(*TRAINED, "evaluation.every=1", f"hydra.run.dir={folder}")
    assert process.returncode == 0, process.stderr
    return folder


@pytest.fixture
def evaluate(capsys):
    """Returns a function that runs the entry point and returns its exit code, output and error."""

    def call(*words):
        code = main([str(word) for word in words])
        return code, *capsys.readouterr()

    return call


@pytest.fixture(scope="session")
def evaluated(run, tmp_path_factory):
    """Returns the newest checkpoint of the run with its evaluation."""
    request, config = read([f"run={run}", f"out={tmp_path_factory.mktemp('out')}"])
    return build_evaluated(config, request)
