"""Tests the file of samples that a job extends, and the reader that all commands share."""

import json

import pytest

from rl4p.base.errors import InputError, RunError
from rl4p.runs import lines
from rl4p.runs.sample import Sample, Status
from rl4p.runs.sample_file import SampleFile, read_samples

ONE = Sample(prompt="1+1", response="é\n\u2028", id="a", sample=1, length=3, logprob=-1.25)
TWO = Sample(prompt="2+2", response="", id="b", sample=0, status=Status.ABORTED, metadata={"b": 1})


@pytest.fixture
def opened(tmp_path):
    """Returns a function that opens the file of a job."""
    files = []

    def start(settings=None, name="out"):
        folder = tmp_path / name
        files.append(SampleFile(folder / "a.jsonl", folder / "settings.json", folder))
        files[-1].check(settings or {"seed": 0})
        return files[-1]

    yield start
    for file in files:
        file.close()


@pytest.fixture
def started(opened):
    """Returns the closed file of a job with two samples."""
    file = opened({"seed": 0, "rollout": {"temperature": 1.0, "top_k": 0}})
    file.append([ONE])
    file.append([TWO])
    file.close()
    return file


def test_samples_are_read_again_and_closing_releases_them(started, opened):
    again = opened({"seed": 0, "rollout": {"temperature": 1.0, "top_k": 0}})
    assert again.samples == started.samples == [ONE, TWO]
    (place, end) = next((place, end) for _, place, end in read_samples(again.path))
    assert place == f"{again.path}, line 1"
    assert again.path.read_bytes()[:end].count(b"\n") == 1
    with pytest.raises(InputError, match=r"Another process is writing .*a\.jsonl"):
        opened()


@pytest.mark.parametrize("cut", [1, 9])
def test_a_kill_in_the_middle_of_a_line_loses_this_line_only(started, cut):
    whole = started.path.read_bytes()
    started.path.write_bytes(whole[:-cut])
    again = SampleFile(started.path, started.settings_path, started.out)
    assert again.samples == [ONE]
    again.append([TWO])
    again.close()
    assert again.path.read_bytes() == whole


def test_the_last_samples_can_be_removed(started):
    again = SampleFile(started.path, started.settings_path, started.out)
    again.keep(1)
    again.append([TWO])
    again.append([ONE])
    again.keep(2)
    again.close()
    assert again.samples == [sample for sample, _, _ in read_samples(again.path)] == [ONE, TWO]


def test_other_settings_are_refused_by_name(started, opened):
    before = started.path.read_bytes()
    with pytest.raises(InputError) as error:
        opened({"seed": 1, "rollout": {"temperature": 1.0}, "step": 3})
    assert "has responses of another command: seed was 0 and would be 1" in str(error.value)
    assert "rollout.top_k was 0 and would be absent" in str(error.value)
    assert "step was absent and would be 3" in str(error.value)
    assert started.path.read_bytes() == before


def test_without_samples_settings_may_change(opened):
    opened({"seed": 0}).close()
    file = opened({"seed": 1})
    assert json.loads(file.settings_path.read_text()) == {"seed": 1}
    file.append([ONE])
    file.settings_path.write_text("[" * 10**5)
    with pytest.raises(InputError, match=r"settings\.json: not JSON"):
        file.check({})


def test_without_its_settings_a_file_starts_again(started, opened):
    started.settings_path.unlink()
    assert opened().samples == []


def test_a_folder_that_cannot_be_is_named(opened, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"out=.*file/new cannot be written: Not a directory"):
        opened(name="file/new")


def test_replacing_keeps_the_order_and_a_file_that_cannot_be_written_is_named(started):
    started.replace([TWO, ONE])
    assert [sample for sample, _, _ in read_samples(started.path)] == [TWO, ONE]
    started.path.unlink()
    started.path.mkdir()
    with pytest.raises(RunError, match=r"Cannot write .*: Is a directory\."):
        started.append([ONE])


LINE = '{"prompt": "a", "response": "b"'


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("\n{}\n", "line 2: a sample needs a prompt"),
        ("[1]\n", "line 1: a JSON object is expected, not list"),
        ("no json\n", "line 1: not JSON"),
        (b"\xff\n", "line 1: not UTF-8"),
        (LINE + ', "metadata": ' + "[" * 10**5 + "\n", "line 1: not JSON"),
        (LINE + ', "metadata": {"a": ' + "[" * 900 + "]" * 900 + "}}\n", "line 1: .*recursion"),
        (LINE + ', "length": ' + "9" * 5000 + "}\n", "line 1: not JSON"),
        (LINE + ', "colour": 1}\n', "line 1: a sample has no colour"),
        ('{"prompt": "' + "a" * 2000 + '", "response": "b"}\n', "a line of more than 0 MiB"),
    ],
    ids=range(9),
)
def test_a_hostile_line_is_named_by_every_command(tmp_path, monkeypatch, content, said):
    monkeypatch.setattr(lines, "LONGEST", 1000 if "MiB" in said else lines.LONGEST)
    path = tmp_path / "a.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=said):
        list(read_samples(path))
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(InputError, match=said):
        SampleFile(path, tmp_path / "settings.json", tmp_path)
    assert path.read_bytes() == (content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize(("unfinished", "count"), [(False, 1), (True, 2)])
def test_a_last_line_without_a_line_feed_may_be_unfinished(tmp_path, unfinished, count):
    (tmp_path / "a.jsonl").write_text(LINE + "}\n\n" + LINE + "}")
    assert len(list(read_samples(tmp_path / "a.jsonl", unfinished=unfinished))) == count
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(InputError, match=r"a\.jsonl cannot be read: No such file"):
        list(read_samples(tmp_path / "a.jsonl"))
