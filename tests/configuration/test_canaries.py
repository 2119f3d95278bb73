"""Hostile recipes and run folders, given to the commands. The canaries are those of the drill."""

import importlib
import re

import pytest

from experiments.drills.canaries import RECIPES, RUNS, SECRET, VARIABLE, canaries
from rl4p import train
from rl4p.command import main

SENTENCES = "A file gives th|comes from a file, |a file reads the|leads out of|would be saved with"
FIRST = ("key", "decoded", "link", "trackers", "run folder", "evaluate", "resume", "send")


@pytest.mark.hostile
@pytest.mark.parametrize(
    "name",
    [
        name if name in FIRST else pytest.param(name, marks=pytest.mark.slow)
        for name in (*RECIPES, *RUNS)
    ],
)
def test_a_hostile_file_reaches_nothing(tmp_path, monkeypatch, capsys, name):
    monkeypatch.setenv(VARIABLE, SECRET)
    monkeypatch.chdir(tmp_path)
    with canaries(tmp_path) as own:
        command, *words = own.recipe(RECIPES[name]) if name in RECIPES else own.run(*RUNS[name])
        if command in ("train", "plan"):
            with pytest.raises(SystemExit) as ended:
                main(command, train.job, argv=words, reads_runs=command == "plan")
            exit_code = ended.value.code
        else:
            exit_code = importlib.import_module(f"rl4p.{command}").main(words)
        assert not own.harm()
    shown = capsys.readouterr()
    assert SECRET not in shown.out + shown.err
    assert (exit_code, shown.err.count("\n")) == (2, 1), shown.err
    assert re.search(SENTENCES, shown.err)  # and no other error, which would come too late
