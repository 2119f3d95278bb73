import fcntl
import os
import subprocess
import sys
from contextlib import nullcontext

import pytest
import yaml
from omegaconf import OmegaConf

from rl4p.base.errors import InputError
from rl4p.base.storage import ObjectStore
from rl4p.command.command_line import launch
from rl4p.configuration.composition import CONF
from rl4p.runs.best import best_checkpoint
from rl4p.runs.folder import (
    RECORD,
    RUNS,
    copy_for_reading,
    newest_runs,
    only_run_in,
    refuse_hydra_of_others,
    refuse_taken,
    save_config,
)
from rl4p.runs.saved_steps import chosen_step, steps_of
from tests.support.mirrors import go_on, opened

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
        "import os, sys, pathlib; from rl4p.runs.folder import only_run_in\n"
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


def test_a_copy_fetches_only_the_checkpoint_that_is_chosen(tmp_path, url):
    folder = tmp_path / "run"
    go_on(folder, 2)
    go_on(folder, 6)
    opened(folder, url).send_metrics()
    copy = copy_for_reading(url)
    place = copy / "checkpoints"
    assert steps_of(place) == [2, 6]
    assert not list(place.rglob("state"))
    assert best_checkpoint(copy, [2, 6]) == chosen_step(place, "best") == 2
    assert {path.parent.name for path in place.rglob("state")} == {"2"}
    go_on(folder, 8)
    opened(folder, url).send_metrics()
    assert steps_of(copy_for_reading(url) / "checkpoints") == [6, 8]
    ObjectStore(url).write("checkpoints/8/state/a", b"damaged")
    assert chosen_step(place) == 6
