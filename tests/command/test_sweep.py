import json
from pathlib import Path

import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from rl4p.base.errors import InputError, RunError, Stopped
from rl4p.command.sweep import is_search, jobs_of
from rl4p.configuration.composition import Composer
from rl4p.runs.folder import only_run_in
from rl4p.runs.sweep import SweepJob, read_jobs, write_jobs


def jobs(toy, *lines: str) -> list[SweepJob]:
    composer = Composer(toy.conf)
    overrides = composer.parse(list(lines))
    of_hydra = [each for each in overrides if each.is_hydra_override()]
    others = [each for each in overrides if not each.is_hydra_override()]
    return jobs_of(composer, composer.load(list(lines)), others, of_hydra)


def test_jobs_are_those_of_hydra_and_named_by_what_differs(toy):
    found = jobs(toy, "seed=0,1", "steps=3", "rollout=plain,needy")
    assert [(job.folder, job.own) for job in found] == [
        ("0", "seed=0 rollout=plain"),
        ("1", "seed=0 rollout=needy"),
        ("2", "seed=1 rollout=plain"),
        ("3", "seed=1 rollout=needy"),
    ]
    assert found[2].overrides == ("seed=1", "steps=3", "rollout=plain")


@pytest.mark.slow
def test_a_folder_may_have_a_name_of_the_users_own(toy):
    found = jobs(toy, "seed=3,4", "hydra.sweep.subdir='s${seed}-${hydra.job.num}'")
    assert [job.folder for job in found] == ["s3-0", "s4-1"]
    with pytest.raises(InputError, match="gives 2 jobs only 1 folders"):
        jobs(toy, "seed=3,4", "hydra.sweep.subdir=same")


def test_only_hydras_own_sweeper_is_no_search(toy):
    config = Composer(toy.conf).load([])
    assert not is_search(config)
    assert is_search(
        OmegaConf.create({"hydra": {"sweeper": {"_target_": "hydra_plugins.x.Sweeper"}}})
    )


# A sweep that is resumed.


@pytest.mark.parametrize("place", ["../other", "/other", "a/../..", ".", "link", "a/../../x", ""])
def test_a_job_that_leads_out_of_its_sweep_is_refused(tmp_path, place):
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep/link").symlink_to(tmp_path)
    write_jobs(tmp_path / "sweep", [SweepJob(folder=place, overrides=("seed=1",), own="")])
    with pytest.raises(InputError, match="which leads out of it"):
        read_jobs(tmp_path / "sweep")


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def training(seen: list[DictConfig], ends: dict[int, BaseException | None] | None = None):
    """Returns a job that keeps the record of a run; `ends` has the errors of some seeds."""

    def job(config: DictConfig) -> None:
        seen.append(config)
        folder = Path(HydraConfig.get().runtime.output_dir)
        error = (ends or {}).get(config.seed)
        if isinstance(error, InputError):
            raise error
        (folder / "metrics.jsonl").write_text('{"step": 0}\n')
        status = {Stopped: "stopped", RunError: "failed"}.get(type(error), "finished")
        steps = config.steps if status == "finished" else 2
        (folder / "summary.json").write_text(json.dumps({"status": status, "step": steps}))
        if error is not None:
            raise error

    return job


def sweep(toy, *argv, ends=None) -> tuple[int, list[DictConfig]]:
    """Runs a sweep; returns its exit code and the configurations of the jobs that ran."""
    seen: list[DictConfig] = []
    return toy.run(*argv, job=training(seen, ends), after_sweep=lambda *_: None), seen


@pytest.mark.slow
def test_a_resumed_sweep_runs_what_is_left(toy, capsys):
    ends = {1: RunError("One is wrong."), 3: Stopped("Saved.")}
    exit_code, seen = sweep(toy, "-m", "seed=0,1,2,3,4,5", "advantage=other", ends=ends)
    assert exit_code == 3
    assert [config.seed for config in seen] == [0, 1, 2, 3]
    folder = toy.folder / "outputs/sweeps/one"
    command = f"python -m rl4p.toy resume={folder} 'trusted_targets=[toy]'\n"
    assert capsys.readouterr().out.endswith(f"Run what is left with: {command}")
    before = files(folder / "0") | files(folder / "2")
    # The job that failed runs anew, the stopped one continues, and the last two start.
    exit_code, seen = sweep(toy, f"resume={folder}", ends={5: InputError("Five is wrong.")})
    assert exit_code == 2
    assert [config.seed for config in seen] == [1, 3, 4, 5]
    assert [config.resume for config in seen] == [None, str(folder / "3"), None, None]
    assert {config.advantage.rate for config in seen} == {0.25}
    assert "job 4 of 6: seed=3\n" in capsys.readouterr().out
    assert files(folder / "0") | files(folder / "2") == before
    assert json.loads((folder / "failed/1/failure.json").read_text())["error"] == "One is wrong."
    assert not (folder / "1/failure.json").exists()
    # Once more: the job that failed at once has no record, but a folder.
    exit_code, seen = sweep(toy, f"resume={folder}")
    assert (exit_code, [config.seed for config in seen]) == (0, [5])
    assert {path.name for path in (folder / "failed").iterdir()} == {"1", "5"}
    assert sweep(toy, f"resume={folder}") == (0, [])


@pytest.mark.slow
def test_a_sweep_is_extended(toy):
    folder = toy.folder / "outputs/sweeps/one"
    sweep(toy, "-m", "seed=0,1", ends={1: Stopped("Saved.")})
    exit_code, seen = sweep(toy, f"resume={folder}", "steps=9", "hydra/launcher=basic")
    assert exit_code == 0
    assert [(config.seed, config.steps, config.resume) for config in seen] == [
        (0, 9, str(folder / "0")),
        (1, 9, str(folder / "1")),
    ]
    assert sweep(toy, f"resume={folder}", "steps=9") == (0, [])
    assert sweep(toy, f"resume={folder}") == (0, [])


@pytest.mark.slow
def test_a_run_that_was_killed_while_it_was_extended_is_not_finished(toy):
    folder = toy.folder / "outputs/sweeps/one"
    sweep(toy, "-m", "seed=0,1")
    sweep(toy, f"resume={folder}", "steps=9")
    (folder / "1/summary.json").write_text('{"status": "finished", "step": 5}')
    _, seen = sweep(toy, f"resume={folder}")
    assert [(config.seed, config.steps) for config in seen] == [(1, 9)]


@pytest.mark.slow
def test_folders_of_a_sweep_with_names_of_their_own(toy):
    name = "hydra.sweep.subdir='a, ${seed}'"
    exit_code, _ = sweep(toy, "-m", "seed=0,1", name, ends={0: InputError("Zero.")})
    assert exit_code == 2
    folder = toy.folder / "outputs/sweeps/one"
    exit_code, seen = sweep(toy, f"resume={folder}")
    assert (exit_code, [config.seed for config in seen]) == (0, [0])
    made = {path.name for path in folder.iterdir() if path.is_dir()}
    assert made == {"a, 0", "a, 1", "failed"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "ends",
    [{0: Stopped("Saved.")}, {1: RunError("One is wrong.")}],
    ids=["a job continues", "a job begins anew"],
)
def test_a_sweep_keeps_its_configuration(toy, capsys, ends):
    folder = toy.folder / "outputs/sweeps/one"
    sweep(toy, "-m", "seed=0,1", ends=ends)
    before = files(folder)
    assert sweep(toy, f"resume={folder}", "advantage.rate=0.3") == (2, [])
    assert "advantage.rate was 0.5 and would be 0.3" in capsys.readouterr().err
    assert files(folder) == before


@pytest.mark.slow
def test_a_sweep_whose_job_is_active_waits_for_it(toy, capsys):
    folder = toy.folder / "outputs/sweeps/one"
    sweep(toy, "-m", "seed=0,1", ends={0: Stopped("Saved.")})
    for busy in (folder, folder / "0"):
        with only_run_in(busy):
            assert sweep(toy, f"resume={folder}") == (2, [])
        assert f"Another run is using {busy}." in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("jobs.yaml", None, "its jobs.yaml is absent or broken"),
        ("jobs.yaml", "- [1", "its jobs.yaml is absent or broken"),
        ("jobs.yaml", "- {folder: '0'}", "its jobs.yaml is absent or broken"),
        ("jobs.yaml", "[]", "the jobs of a search"),
        ("multirun.yaml", "[1", "its multirun.yaml cannot be read"),
        ("multirun.yaml", "a: 1", "its multirun.yaml cannot be read"),
    ],
)
def test_a_sweep_with_a_broken_record_is_refused(toy, capsys, name, text, sentence):
    folder = toy.folder / "outputs/sweeps/one"
    sweep(toy, "-m", "seed=0,1", ends={0: Stopped("Saved.")})
    (folder / name).unlink() if text is None else (folder / name).write_text(text)
    assert sweep(toy, f"resume={folder}") == (2, [])
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 2  # and that of the sweep that was stopped


@pytest.mark.slow
def test_a_sweep_is_not_shown_as_one_job(toy, capsys):
    sweep(toy, "-m", "seed=0,1", ends={0: Stopped("Saved.")})
    assert sweep(toy, "resume=outputs/sweeps/one", "--cfg", "job") == (2, [])
    assert "--cfg and --info show a single job" in capsys.readouterr().err
