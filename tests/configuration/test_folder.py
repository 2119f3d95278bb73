import fcntl
import os
import subprocess
import sys
from contextlib import nullcontext

import pytest
import yaml
from omegaconf import OmegaConf

from rl4p.base.errors import InputError
from rl4p.configuration.command_line import launch
from rl4p.configuration.composition import CONF
from rl4p.configuration.folder import (
    RECORD,
    RUNS,
    newest_runs,
    only_run_in,
    refuse_hydra_of_others,
    refuse_taken,
    save_config,
)

SHARED = fcntl.LOCK_SH


def refused(folder, **options):
    with pytest.raises(InputError) as caught, only_run_in(folder, **options):
        raise AssertionError("it was let in")
    assert str(caught.value) == f"Another run is using {folder}."


def test_a_folder_has_one_run_at_a_time(tmp_path):
    with only_run_in(tmp_path):
        refused(tmp_path)
        refused(tmp_path, lock=SHARED)
    with only_run_in(tmp_path):
        pass


def test_those_who_only_ask_stand_side_by_side(tmp_path):
    with only_run_in(tmp_path, lock=SHARED):
        with only_run_in(tmp_path, lock=SHARED):
            refused(tmp_path)
        refused(tmp_path)


def test_an_error_within_is_the_callers_and_frees_the_folder(tmp_path):
    with pytest.raises(OSError, match="disk full"), only_run_in(tmp_path):
        raise OSError("disk full")
    with only_run_in(tmp_path):
        pass


def test_the_lock_goes_with_its_process(tmp_path):
    script = (
        "import os, sys, pathlib; from rl4p.configuration.folder import only_run_in\n"
        "with only_run_in(pathlib.Path(sys.argv[1])):\n"
        "    print('in', flush=True); sys.stdin.readline(); os.abort()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        refused(tmp_path)
        process.communicate("go\n")
    assert process.returncode != 0
    with only_run_in(tmp_path):
        pass


def test_a_folder_with_a_record_is_taken(tmp_path):
    refuse_taken("hydra.run.dir", str(tmp_path), RECORD)
    refuse_taken("hydra.run.dir", str(tmp_path / "absent"), RECORD)
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(InputError) as caught:
        refuse_taken("hydra.run.dir", str(tmp_path), RECORD)
    assert str(caught.value) == (
        f"hydra.run.dir={tmp_path} already contains a run: continue it with resume={tmp_path}, or "
        "choose another folder."
    )
    refuse_taken("hydra.sweep.dir", str(tmp_path), f"*/{RECORD}")


def test_files_of_hydra_of_others_are_not_replaced(tmp_path):
    save_config(OmegaConf.create({"a": 1}), "config.yaml", tmp_path / ".hydra")
    refuse_hydra_of_others(str(tmp_path))
    refuse_hydra_of_others(str(tmp_path / "absent"))
    (tmp_path / ".hydra/config.yaml").write_text("a: 1\n")
    with pytest.raises(InputError, match=r"config\.yaml exists and is not yours: name another"):
        launch("plan", pytest.fail, nullcontext, None, [f"out={tmp_path}"], CONF, reads_runs=True)
    assert (tmp_path / ".hydra/config.yaml").read_text() == "a: 1\n"


def test_a_sweep_is_taken_by_one_of_its_jobs(tmp_path):
    (tmp_path / "0").mkdir()
    (tmp_path / "1").mkdir()
    (tmp_path / "1/metrics.jsonl").touch()
    with pytest.raises(InputError, match=f"continue it with resume={tmp_path}/1, or choose"):
        refuse_taken("hydra.sweep.dir", str(tmp_path), f"*/{RECORD}")
    refuse_taken("hydra.run.dir", str(tmp_path), RECORD)


@pytest.mark.parametrize(
    ("argv", "made", "sentence"),
    [
        ([], "outputs/runs/one", "hydra.run.dir=outputs/runs/one already contains a run"),
        (
            ["-m", "seed=1,2"],
            "outputs/sweeps/one/1",
            "hydra.sweep.dir=outputs/sweeps/one already contains a run: continue it with resume="
            "outputs/sweeps/one/1",
        ),
    ],
)
def test_nothing_is_written_over_a_run(toy, capsys, argv, made, sentence):
    (toy.folder / made).mkdir(parents=True)
    (toy.folder / made / "metrics.jsonl").touch()
    assert toy.run(*argv) == 2
    assert capsys.readouterr().err.startswith(sentence)
    assert not toy.jobs
    assert [path.name for path in toy.folder.rglob("*") if path.is_file()] == ["metrics.jsonl"]


def test_a_run_that_goes_on_is_not_resumed_beside_it(toy, capsys):
    assert toy.run() == 0
    run = toy.folder / "outputs/runs/one"
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with only_run_in(run):
        assert toy.run(f"resume={run}", "steps=9") == 2
    assert capsys.readouterr().err == f"Another run is using {run}.\n"
    assert len(toy.jobs) == 1
    (run / ".lock").unlink()
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    with only_run_in(run, lock=SHARED):  # another process that holds a shared lock
        assert toy.run(f"resume={run}", "steps=9") == 0


@pytest.mark.parametrize("folder", ["", None])
def test_an_empty_folder_is_refused(folder):
    with pytest.raises(InputError, match=r"write hydra\.sweep\.dir=outputs/my_run"):
        refuse_taken("hydra.sweep.dir", folder, RECORD)


def test_a_taken_folder_is_named_so_that_it_can_be_pasted(tmp_path):
    folder = tmp_path / "a b, c"
    folder.mkdir()
    (folder / RECORD).write_text("")
    with pytest.raises(InputError) as refused:
        refuse_taken("hydra.run.dir", str(folder), RECORD)
    assert f"""continue it with 'resume="{folder}"', or""" in str(refused.value)


def test_runs_without_a_folder_of_their_own_are_where_latest_looks():
    folder = yaml.safe_load((CONF / "config.yaml").read_text())["hydra"]["run"]["dir"]
    before, _, after = folder.partition("/${")
    assert before == str(RUNS)
    assert after.count("/") == 1  # newest_runs looks one and two levels down


def test_the_newest_run_is_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(["b/new", "a", "c/old"]):
        start = RUNS / name / ".hydra/config.yaml"
        start.parent.mkdir(parents=True)
        start.write_text("")
        os.utime(start, (1000 - age, 1000 - age))
        (RUNS / name / RECORD).write_text("")
    (RUNS / "a" / RECORD).unlink()
    assert newest_runs() == [RUNS / "b/new", RUNS / "c/old"]
