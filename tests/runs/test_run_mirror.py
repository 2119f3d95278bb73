"""Tests that the mirror of a run in an object store resumes as the run itself would."""

import logging
import shutil
import time
from contextlib import suppress
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

import rl4p
import rl4p.runs.run_mirror
from rl4p.base.errors import InputError, RunError
from rl4p.base.storage import ObjectStore
from rl4p.command import main
from rl4p.command.resume import update
from rl4p.compare import main as compare
from rl4p.configuration.yaml_file import is_own, load_yaml, read_yaml
from rl4p.export import main as export
from rl4p.runs.folder import copy_for_reading
from rl4p.runs.record import Record
from rl4p.runs.run_mirror import KEY, RunMirror, StoreMirror, refuse_others, run_mirror
from rl4p.runs.saved_steps import chosen_step, steps_of
from rl4p.samples import main as samples
from tests.support.mirrors import go_on, opened
from tests.support.runs import SMALL, assert_same_checkpoint, assert_trains, lines, summary

STEPS = ("steps=8", "checkpoint.every=2", "ema.decay=0.5")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(rl4p.runs.run_mirror, "SECONDS_BETWEEN", 0.05)


class Killed(Exception):
    """The end of the process."""


def kill_after(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Makes the store raise in place of each change after the first ones."""
    changes = iter(range(count))

    def or_killed(original):
        def change(*args, **kwargs):
            if next(changes, None) is None:
                raise Killed
            return original(*args, **kwargs)

        return change

    for name in ("pipe_file", "put_file", "rm_file"):
        monkeypatch.setattr(MemoryFileSystem, name, or_killed(getattr(MemoryFileSystem, name)))


def resumable(url: str, folder: Path, state: str = "state") -> int | None:
    """Returns the step from which another machine goes on, after checking all that it needs."""
    if not update(ObjectStore(url), folder) or not steps_of(folder / "checkpoints"):
        return None
    step = chosen_step(folder / "checkpoints")
    Record(folder).refuse_gaps(step)
    assert (folder / ".hydra" / "config.yaml").is_file()
    for name in ("state/a", "state/b", "parts"):
        assert (folder / "checkpoints" / str(step) / name).read_text() == f"{state} {name} {step}"
    return step


def test_killed_at_any_change_of_the_store_it_has_a_run_that_resumes(tmp_path, url, monkeypatch):
    """Two checkpoints are sent, of which the second replaces the only one that the run keeps."""
    count, steps = 0, []
    while True:
        folder, own = tmp_path / "run", f"{url}{count}"
        go_on(folder, 3, keep=1)
        mirror, sent = opened(folder, own), None
        with monkeypatch.context() as patch, suppress(RunError):
            kill_after(patch, count)
            mirror.send_metrics()
            sent = 3
            go_on(folder, 6, keep=1)
            mirror.send_metrics()
            sent = 6
        step = resumable(own, tmp_path / str(count))
        assert step in {None: (None, 3), 3: (3, 6), 6: (6,)}[sent], count
        steps.append(step)
        go_on(folder, 9, keep=1)
        opened(folder, own).send_metrics()
        names = [name for name in ObjectStore(own).objects() if name.startswith("checkpoints/")]
        assert {name.split("/")[1] for name in names} == {"9"}
        if sent == 6:
            break
        shutil.rmtree(folder)
        count += 1
    assert steps == sorted(steps, key=lambda x: x or 0)
    assert {None, 3, 6} <= set(steps)


def test_a_record_without_a_checkpoint_stays_short_so_that_its_run_starts_again(
    tmp_path, url, monkeypatch
):
    """The first checkpoint is sent for so long that the run has gone on by many steps."""
    folder = tmp_path / "run"
    go_on(folder, 3)
    shutil.rmtree(folder / "checkpoints")
    opened(folder, url).send_metrics()
    go_on(folder, 50)
    mirror = opened(folder, url)
    with monkeypatch.context() as patch, suppress(RunError):
        kill_after(patch, 2)
        mirror.send_metrics()
    assert resumable(url, tmp_path / "copy") is None
    assert [row["step"] for row in Record(tmp_path / "copy").metrics()] == [0, 1, 2, 3]
    opened(folder, url).send_metrics()
    assert resumable(url, tmp_path / "whole") == 50


def test_a_run_that_went_back_leaves_no_newer_checkpoint_in_the_store(tmp_path, url, monkeypatch):
    """Killed anywhere, the store has the old branch or the new one, and never a mixture."""
    count = 0
    while True:
        folder, own = tmp_path / "run", f"{url}{count}"
        go_on(folder, 3)
        go_on(folder, 6)
        mirror = opened(folder, own)
        mirror.send_metrics()
        (folder / "checkpoints" / "6").rename(folder / "checkpoints" / "6.left")
        Record(folder).truncate_after(3)
        go_on(folder, 5)
        mirror, ended = opened(folder, own), False
        with monkeypatch.context() as patch, suppress(RunError):
            kill_after(patch, count)
            mirror.send_metrics()
            ended = True
        step = resumable(own, tmp_path / str(count))
        assert step == 5 if ended else step in (3, 5, 6)
        if ended:
            break
        shutil.rmtree(folder)
        count += 1


def test_a_step_that_is_saved_anew_replaces_the_one_in_the_store(tmp_path, url):
    folder = tmp_path / "run"
    go_on(folder, 3)
    opened(folder, url).send_metrics()
    shutil.rmtree(folder / "checkpoints")
    go_on(folder, 3, state="other state")
    opened(folder, url).send_metrics()
    assert resumable(url, tmp_path / "copy", "other state") == 3


def test_a_checkpoint_that_the_run_deletes_while_it_is_sent_arrives(tmp_path, url, monkeypatch):
    folder = tmp_path / "run"
    go_on(folder, 3)
    mirror = opened(folder, url)
    upload = ObjectStore.upload

    def late(self, names, place):
        shutil.rmtree(folder / "checkpoints" / "3", ignore_errors=True)
        upload(self, names, place)

    monkeypatch.setattr(ObjectStore, "upload", late)
    mirror.send_metrics()
    assert resumable(url, tmp_path / "copy") == 3


def test_the_record_reaches_to_a_step_before_its_digests_are_sent(tmp_path, url, monkeypatch):
    """The run saves a checkpoint after the mirror has sent the record."""
    folder = tmp_path / "run"
    go_on(folder, 3)
    mirror = opened(folder, url)
    mirror.send_metrics()
    send_record, write, ends = mirror.send_record, ObjectStore.write, []

    def late():
        send_record()
        if steps_of(folder / "checkpoints") == [3]:
            go_on(folder, 6)

    def checked(self, name, content):
        write(self, name, content)
        if name == "digests.sha256":
            lines = (ObjectStore(url).read("metrics.jsonl") or b"").splitlines()
            ends.append((int(self.url.rpartition("/")[2]), len(lines) - 1))

    monkeypatch.setattr(mirror, "send_record", late)
    monkeypatch.setattr(ObjectStore, "write", checked)
    mirror.send_metrics()
    assert ends == [(6, 6)]


def test_two_starts_never_write_one_mirror(tmp_path, url, caplog):
    a, b = tmp_path / "a", tmp_path / "b"
    go_on(a, 3)
    first = RunMirror(url=url).open(a)
    assert (a / ".unsent").exists()  # so that a finished run is resumed, to send the rest
    first.log(3, {})
    assert first.finish("stopped")
    assert not (a / ".unsent").exists()
    update(ObjectStore(url), b)
    second = RunMirror(url=url).open(b)
    with pytest.raises(InputError, match="has a later state of this run than"):
        refuse_others(ObjectStore(url), a, resumed=True)
    with pytest.raises(InputError, match="already contains a run"):
        refuse_others(ObjectStore(url), tmp_path, resumed=False)
    refuse_others(ObjectStore(url), b, resumed=True)
    stale = StoreMirror(ObjectStore(url), a, "start of a", first)
    with pytest.raises(RunError, match="another start of the run writes to"):
        stale.send_metrics()
    assert second.finish("finished")
    assert second.sent


def test_objects_that_are_no_run_are_not_replaced(tmp_path, url):
    ObjectStore(url).write("thesis.tex", b"years of work")
    with pytest.raises(InputError, match="has objects that are no mirror of a run"):
        refuse_others(ObjectStore(url), tmp_path, resumed=False)


def test_hidden_files_and_links_stay_here_and_deleted_files_go(tmp_path, url):
    folder = tmp_path / "run"
    go_on(folder, 3)
    for name in (
        "exports/step-1/config.json",
        "exports/.step-2.x/config.json",
        ".lock",
        "summary.json",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    (folder / "link").symlink_to("/etc/hostname")
    mirror = opened(folder, url)
    mirror.send_metrics()
    of_run = {name for name in ObjectStore(url).objects() if not name.startswith("checkpoints")}
    record = {".hydra/config.yaml", ".mirror", "metrics.jsonl"}
    assert of_run == record | {"exports/step-1/config.json", "summary.json"}
    (folder / "summary.json").unlink()
    opened(folder, url).send_metrics()
    assert "summary.json" not in ObjectStore(url).objects()


def test_a_store_that_fails_costs_a_warning_and_all_is_sent_later(
    tmp_path, url, monkeypatch, caplog
):
    monkeypatch.setattr("rl4p.runs.tracker.background.SECONDS_BETWEEN_ATTEMPTS", 0.0)
    folder = tmp_path / "run"
    go_on(folder, 3)
    mirror = RunMirror(url=url).open(folder)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        kill_after(patch, 1)
        mirror.log(3, {})
        while not caplog.messages:
            time.sleep(0.01)
    assert caplog.messages[0] == f"The run continues without {url} until it answers: Killed:"
    assert mirror.finish("finished")
    assert resumable(url, tmp_path / "copy") == 3


@pytest.mark.slow
def test_each_job_of_a_sweep_has_a_mirror_of_its_own_which_its_folder_records(tmp_path, url):
    urls = []

    def job(config):
        mirror = run_mirror(config, Path(HydraConfig.get().runtime.output_dir))
        urls.append(mirror and mirror.url)

    main("train", job, argv=["-m", "seed=0,1", KEY + f"={url}/", f"hydra.sweep.dir={tmp_path}/s"])
    assert urls == [f"{url}/0", f"{url}/1"]
    hydra = tmp_path / "s" / "1" / ".hydra"
    assert OmegaConf.select(load_yaml(hydra / "config.yaml"), KEY) == urls[1]
    assert f"{KEY}={urls[1]}" in read_yaml(hydra / "overrides.yaml")
    assert all(is_own(hydra / name) for name in ("config.yaml", "overrides.yaml"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    rl4p.train([*SMALL, *STEPS, f"hydra.run.dir={folder}"])
    assert_trains(lines(folder))
    return folder


@pytest.mark.slow
@pytest.mark.mixed_dtypes
def test_another_machine_goes_on_bit_for_bit(whole, tmp_path, url, monkeypatch, capsys):
    """The second start has an empty folder, and neither the key nor the caches of the first."""
    monkeypatch.chdir(tmp_path)
    words = [*SMALL, *STEPS, "steps=6", f"checkpoint.mirror={url}", "resume=auto"]
    rl4p.train([*words, f"hydra.run.dir={tmp_path / 'first'}"])
    shutil.rmtree(tmp_path / "first")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = rl4p.train([f"resume={url}", "steps=8"])
    assert run.folder == tmp_path / "outputs" / "mirrors" / "memory" / url.partition("://")[2]
    assert summary(run.folder)["resumed_from"] == 6
    again = copy_for_reading(url)
    for folder in (run.folder, again):
        assert lines(folder) == lines(whole)
        assert summary(folder)["params_sha256"] == summary(whole)["params_sha256"]
        assert (folder / "samples.jsonl").read_text() == (whole / "samples.jsonl").read_text()
    assert_same_checkpoint(run.folder, whole)
    policies = []
    for name, of_run in (("here", str(whole)), ("of_store", url)):
        assert export(["dtype=float32", f"run={of_run}", f"out={name}"]) == 0
        policies.append((tmp_path / name / "model.safetensors").read_bytes())
    assert policies[0] == policies[1]
    capsys.readouterr()
    assert samples([url, "limit=all"]) == 0
    assert "step 8" in capsys.readouterr().out
    assert compare([f"run={url}", "out=compared"]) == 0
    assert (tmp_path / "compared" / "compare" / "index.html").is_file()
    assert export([f"run={url}", "out=s3://bucket/policy"]) == 2
    assert "name one, and copy the result from there" in capsys.readouterr().err
