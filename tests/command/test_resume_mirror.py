"""Tests the local folder of a run that is resumed from its mirror."""

import pytest

from rl4p.base.errors import InputError
from rl4p.base.storage import ObjectStore
from rl4p.command.command_line import main
from rl4p.command.resume_mirror import with_local_folder
from rl4p.configuration import compose
from rl4p.runs.folder import only_run_in


@pytest.fixture
def mirrored(url, tmp_path, monkeypatch):
    """An address with the record of a run, and the working directory of another machine."""
    for name, text in (
        (".hydra/overrides.yaml", "[]"),
        (".mirror", "first start"),
        ("metrics.jsonl", '{"step": 0}\n'),
        ("exports/step-1/config.json", "{}"),
        ("checkpoints/5/digests.sha256", "digests"),
        ("checkpoints/5/state", "large"),
        ("checkpoints/6/state", "incomplete"),
    ):
        ObjectStore(url).write(name, text.encode())
    monkeypatch.chdir(tmp_path)
    return url


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


COPIED = {
    *(".hydra/overrides.yaml", ".mirror", "metrics.jsonl", "exports/step-1/config.json"),
    "checkpoints/5/digests.sha256",
}


def test_other_command_lines_stay_as_they_are(url):
    for words in (["steps=2"], ["resume=outputs/run"], ["resume=auto", "hydra.run.dir=a"], []):
        assert with_local_folder(words) == words
    assert with_local_folder([f"checkpoint.mirror={url}"]) == [f"checkpoint.mirror={url}"]


def test_the_run_gets_a_folder_with_all_but_the_files_of_checkpoints(mirrored, tmp_path):
    words = with_local_folder([f"resume={mirrored}", "steps=9"])
    folder = tmp_path / "outputs" / "mirrors" / "memory" / mirrored.partition("://")[2]
    assert words == ["steps=9", f"resume={folder}", f"checkpoint.mirror={mirrored}"]
    assert files(folder) == COPIED
    assert list(folder.parent.iterdir()) == [folder]


def test_resume_auto_starts_a_run_that_the_store_lacks_and_resumes_it_later(mirrored, tmp_path):
    folder = tmp_path / "run"
    words = ["resume=auto", f"hydra.run.dir={folder}"]
    for url, exists in ((f"{mirrored}/other", False), (mirrored, True)):
        mirror = f"checkpoint.mirror={url}"
        assert with_local_folder([*words, mirror]) == ["resume=auto", mirror, words[1]]
        assert folder.exists() == exists
    assert files(folder) == COPIED


def test_a_folder_of_the_same_start_is_ahead_and_one_of_another_start_is_set_aside(
    mirrored, tmp_path, caplog
):
    folder = tmp_path / "run"
    words = [f"resume={mirrored}", f"hydra.run.dir={folder}"]
    with_local_folder(words)
    (folder / "metrics.jsonl").write_text('{"step": 0}\n{"step": 1}\n')
    with_local_folder(words)
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2
    ObjectStore(mirrored).write(".mirror", b"second start")
    with only_run_in(folder), pytest.raises(InputError, match="Another run is using"):
        with_local_folder(words)
    with_local_folder(words)
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 1
    assert len((tmp_path / "run.1" / "metrics.jsonl").read_text().splitlines()) == 2
    assert f"{folder} is now {folder}.1, because {mirrored} has a later" in caplog.text


def test_what_is_no_run_is_refused(mirrored, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("years of work")
    for words, sentence in (
        ([f"resume={mirrored}/nothing"], "is not the folder of a run: it has no metrics.jsonl"),
        ([f"resume={mirrored}", "hydra.run.dir=thesis"], "has files that are no run"),
        ([f"resume={mirrored}", f"checkpoint.mirror={mirrored}2"], "is not the mirror that"),
    ):
        with pytest.raises(InputError, match=sentence):
            with_local_folder(words)
    assert (tmp_path / "thesis" / "thesis.tex").exists()


def test_only_the_command_line_gives_an_address(tmp_path, url, capsys):
    recipe = tmp_path / "conf" / "experiment" / "mine.yaml"
    recipe.parent.mkdir(parents=True)
    recipe.write_text(f"# @package _global_\ncheckpoint:\n  mirror: {url}\n")
    with pytest.raises(InputError, match="is a place that the run writes to"):
        compose(["experiment=mine"], config_dir=str(recipe.parents[1]))
    given = compose(["experiment=mine", f"allow={url}"], config_dir=str(recipe.parents[1]))
    assert given.checkpoint.mirror == url
    for word, sentence in (
        ("checkpoint.mirror=s3://key:secret@bucket/a", "checkpoint.mirror has a user name, a pass"),
        ("hydra.run.dir=s3://bucket/a", "mirrored: write checkpoint.mirror=s3://bucket/a"),
        ("hydra.sweep.dir=s3://bucket/a -m", "mirrored: write checkpoint.mirror=s3://bucket/a"),
    ):
        with pytest.raises(SystemExit):
            main("train", print, argv=word.split())
        error = capsys.readouterr().err
        assert sentence in error
        assert "secret@" not in error
