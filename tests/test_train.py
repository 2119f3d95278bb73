"""Tests the entry point: it imports JAX late, and joins other processes only if there are any."""

import subprocess
import sys
from contextlib import contextmanager, nullcontext

import pytest
from omegaconf import OmegaConf

import rl4p.command
import rl4p.distributed.processes
import rl4p.runs.run
import rl4p.train

ALONE = {"coordinator": None, "processes": None, "process": None}


def test_a_job_is_a_run_whose_errors_the_other_processes_hear_of(monkeypatch):
    said = []

    @contextmanager
    def reporting_errors():
        said.append("listening")
        try:
            yield
        except ValueError as error:
            said.append(str(error))
            raise

    def run(config, *, check, estimate):
        said.append(config)
        if config == "bad":
            raise ValueError("wrong")
        return {"evaluation": {"last": {"eval/a/pass_at_1": 0.5}}}

    monkeypatch.setattr(rl4p.distributed.processes, "reporting_errors", reporting_errors)
    monkeypatch.setattr(rl4p.runs.run, "run", run)
    assert rl4p.train.job("good") == 0.5
    with pytest.raises(ValueError, match="wrong"):
        rl4p.train.job("bad")
    assert said == ["listening", "good", "listening", "bad", "wrong"]


def test_a_process_that_is_told_of_no_others_is_the_first(monkeypatch):
    monkeypatch.setattr(rl4p.distributed.processes, "join_processes", None)
    with rl4p.train.join(OmegaConf.create({"mesh": ALONE})) as first:
        assert first is True


@pytest.mark.parametrize(
    "key", [{"coordinator": "a:1"}, {"processes": 2}, {"processes": "auto"}, {"process": 0}]
)
def test_any_key_of_several_processes_has_them_meet(monkeypatch, key):
    met = []
    monkeypatch.setattr(
        rl4p.distributed.processes, "join_processes", lambda c: met.append(c) or nullcontext(False)
    )
    config = OmegaConf.create({"mesh": ALONE | key})
    with rl4p.train.join(config) as first:
        assert first is False
    assert met == [config]


def test_main_is_the_entry_point_of_this_name(monkeypatch):
    called = []
    monkeypatch.setattr(
        rl4p.command, "main", lambda *args, **options: called.append((args, options))
    )
    rl4p.train.main()
    options = {"join": rl4p.train.join, "after_sweep": rl4p.train.after_sweep}
    assert called == [(("train", rl4p.train.job), options)]


def test_reading_the_command_line_loads_nothing_heavy():
    script = (
        "import sys, rl4p.command, rl4p.train\n"
        "rl4p.command.main = lambda *arguments, **options: None\n"
        "rl4p.train.main()\n"
        "assert not sys.modules.keys() & {'jax', 'numpy', 'orbax', 'mlflow', 'rl4p.runs.run'}"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
