"""Tests sweeps of jobs that fail, with Hydra's own launcher; tests/runs has the other launchers."""

import json
from pathlib import Path

import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from rl4p.base.errors import InputError, RunError
from rl4p.command.launcher import JobFailed, one_sentence, report_launcher


class TerminatedWorkerError(Exception):
    __module__ = "joblib.externals.loky.process_executor"


def fails(seen, *seeds):
    def job(config):
        seen.append(config.seed)
        if config.seed in seeds:
            raise RunError(f"{config.seed} is wrong.")

    return job


ONE_AT_A_TIME = pytest.param(["hydra.sweeper.max_batch_size=1"], marks=pytest.mark.slow)


@pytest.mark.parametrize("options", [[], ONE_AT_A_TIME])
def test_a_failed_job_neither_stops_nor_hides_the_others(toy, capsys, options):
    seen, folder = [], toy.folder / "outputs/sweeps/one"
    assert toy.run("-m", "seed=0,1,2,3", *options, job=fails(seen, 0, 2)) == 1
    assert seen == [0, 1, 2, 3]
    printed = capsys.readouterr()
    assert printed.err == "0 is wrong.\n2 is wrong.\n"
    assert printed.out.splitlines() == [
        f"4 jobs in {folder}",
        *(f"job {seed + 1} of 4: seed={seed}" for seed in range(4)),
        f"{folder}: 4 jobs, 2 finished, 2 failed",
        *("  failed: seed=0", "    0 is wrong.", f"    {folder / '0'}"),
        *("  failed: seed=2", "    2 is wrong.", f"    {folder / '2'}"),
    ]


@pytest.mark.slow
def test_the_finished_runs_are_handed_on(toy):
    handed = []

    def job(config):
        if config.seed == 1:
            raise InputError("No.")
        summary = json.dumps({"status": "finished", "step": config.steps})
        (Path(HydraConfig.get().runtime.output_dir) / "summary.json").write_text(summary)

    def after(*given):
        handed.append(given)

    assert toy.run("-m", "seed=0,1,2", job=job, after_sweep=after) == 2
    folder = toy.folder / "outputs/sweeps/one"
    assert handed == [(folder, [folder / "0", folder / "2"])]


@pytest.mark.slow
def test_a_job_without_a_record_has_not_finished(toy, capsys):
    assert toy.run("-m", "seed=0,1", after_sweep=lambda *_: None) == 1
    assert "2 jobs, 2 not started" in capsys.readouterr().out


@pytest.mark.slow
def test_a_new_start_forgets_the_failure(toy):
    folder = toy.folder / "outputs/sweeps/one"
    assert toy.run("-m", "seed=0,1", job=fails([], 1)) == 1
    assert (folder / "1/failure.json").exists()
    assert toy.run(f"resume={folder / '1'}") == 0
    assert not (folder / "1/failure.json").exists()


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (InputError("Two\n words."), "Two words."),
        (KeyError("bug"), "KeyError: 'bug'"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_an_error_is_one_line(error, sentence):
    assert one_sentence(error) == sentence


def test_a_launcher_that_lost_a_job_says_so_in_a_sentence():
    said = []

    def report(error):
        said.append(f"{type(error).__name__}: {error}")
        return 1

    assert report_launcher(JobFailed(2), report) == 2
    assert report_launcher(TerminatedWorkerError("killed\nby 9"), report) == 1
    assert report_launcher(ValueError("bug"), report) == 1
    assert said == [
        "RunError: The process of a job was killed or ended early: killed by 9",
        "ValueError: bug",
    ]


class Killed(BaseException):
    """What no handler catches."""


def test_a_kill_leaves_no_half_of_a_configuration(toy, monkeypatch):
    assert toy.run("seed=3") == 0
    config = toy.folder / "outputs/runs/one/.hydra/config.yaml"
    before = config.read_text()
    assert "seed: 3" in before

    def killed(*arguments, **options):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(OmegaConf, "to_yaml", killed)
        with pytest.raises(Killed):
            toy.run("seed=4")
    assert config.read_text() == before
    assert toy.run("seed=4") == 0
    assert "seed: 4" in config.read_text()
    assert sorted(path.name for path in config.parent.iterdir()) == [
        *("config.yaml", "hydra.yaml", "overrides.yaml")
    ]
