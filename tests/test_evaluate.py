"""Tests the entry point of evaluations: its help, its errors, and what it loads."""

import subprocess
import sys

import pytest

from rl4p.evaluate import main


@pytest.mark.parametrize("arguments", [["--help"], ["run=x", "-h"]])
def test_help_says_the_keys(arguments, capsys):
    assert main(arguments) == 0
    assert "run=FOLDER out=FOLDER [step=N] [average=true]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run=/nowhere", "out=x"], "run=/nowhere is not the folder of a run"),
        (["model=tiny"], "Give out=PATH"),
        ([], "Give out=PATH"),
        (["-m", "out=x"], "Unrecognized arguments: -m; see --help."),
        (["out=x", "--config-dir", "/nowhere"], "--config-dir /nowhere is not a folder."),
        (["out=x", "model"], "model is not KEY=VALUE"),
    ],
)
def test_an_error_is_one_sentence(arguments, sentence, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(sentence)
    assert error.count("\n") == 1


def test_importing_it_loads_nothing_heavy():
    script = (
        "import sys, rl4p.evaluate\n"
        "rl4p.evaluate.main(['--help'])\n"
        "rl4p.evaluate.main(['run=/nowhere', 'out=x'])\n"
        "assert not sys.modules.keys() & {'jax', 'numpy', 'matplotlib', 'mlflow'}"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
