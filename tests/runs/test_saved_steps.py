"""Tests that any damage to the files of a checkpoint is found, and that the file is named."""

import logging
import random
import shutil
import subprocess

import pytest

from rl4p.base.errors import InputError
from rl4p.runs.saved_steps import DIGESTS, chosen_step, damage, set_aside, steps_of, write_digests

FILES = ("_CHECKPOINT_METADATA", "state/manifest.ocdbt", "state/d/0a", "parts/metadata")


@pytest.fixture
def folder(tmp_path):
    """Returns a folder with the steps 3, 6 and 9."""
    for step in ("3", "6", "9"):
        for name in FILES:
            path = tmp_path / step / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(random.Random(step + name).randbytes(64))
        write_digests(tmp_path / step)
    return tmp_path


def flip(path, bit):
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", FILES)
def test_each_flipped_bit_is_found_and_its_file_is_named(folder, name):
    path = folder / "9" / name
    for bit in range(0, 512, 7):
        flip(path, bit)
        assert damage(folder / "9") == f"its file {name} has changed since it was saved"
        flip(path, bit)
    assert damage(folder / "9") is None


def test_each_flipped_bit_of_the_digests_is_found(folder):
    path = folder / "9" / DIGESTS
    for bit in range(0, 8 * path.stat().st_size, 29):
        flip(path, bit)
        found = damage(folder / "9")
        assert found is not None, bit
        assert found.startswith(f"its file {DIGESTS} "), bit
        flip(path, bit)
    assert damage(folder / "9") is None


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs sha256sum")
def test_digests_can_be_checked_without_rl4p(folder):
    check = ["sha256sum", "--check", "--strict", DIGESTS]
    assert subprocess.run(check, cwd=folder / "9", capture_output=True).returncode == 0
    flip(folder / "9" / FILES[0], 0)
    assert subprocess.run(check, cwd=folder / "9", capture_output=True).returncode == 1


def test_files_that_are_missing_cut_or_empty_are_named(folder):
    (folder / "9" / FILES[1]).unlink()
    (folder / "9" / FILES[3]).unlink()
    assert damage(folder / "9") == f"its file {FILES[3]} is missing (and 1 more)"
    (folder / "6" / FILES[1]).write_bytes((folder / "6" / FILES[1]).read_bytes()[:-1])
    assert damage(folder / "6") == f"its file {FILES[1]} has changed since it was saved"
    (folder / "3" / DIGESTS).write_bytes(b"")
    assert damage(folder / "3") == f"its file {DIGESTS} has changed since it was saved"


def test_the_step_before_a_damaged_one_is_chosen_and_said(folder, caplog):
    assert chosen_step(folder) == 9
    assert not caplog.records
    flip(folder / "9" / FILES[2], 3)
    (folder / "12").mkdir()  # a stray folder, or a step that lost all of its files
    assert chosen_step(folder) == 6
    assert [record.getMessage() for record in caplog.records] == [
        f"{folder / '12'} is damaged, because it lacks {DIGESTS}: step 6 is used.",
        f"{folder / '9'} is damaged, because its file {FILES[2]} has changed since it was saved: "
        "step 6 is used.",
    ]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert steps_of(folder) == [3, 6, 9, 12]  # a reader changes nothing


def test_a_given_step_is_that_step_or_an_error(folder):
    assert chosen_step(folder, 3) == 3
    flip(folder / "3" / FILES[2], 3)
    with pytest.raises(InputError, match=rf"/3 is damaged, because its file {FILES[2]} has cha"):
        chosen_step(folder, 3)
    with pytest.raises(
        InputError, match=r"no checkpoint of step 4; it has checkpoints of steps 3, 6, 9 "
    ):
        chosen_step(folder, 4)


def test_if_every_step_is_damaged_each_damage_is_said(folder):
    shutil.rmtree(folder / "3")
    flip(folder / "9" / FILES[0], 0)
    (folder / "6" / DIGESTS).unlink()
    with pytest.raises(InputError) as caught:
        chosen_step(folder)
    assert str(caught.value) == (
        f"Each checkpoint in {folder} is damaged: step 9, because its file {FILES[0]} has changed "
        f"since it was saved; step 6, because it lacks {DIGESTS}. Replace a folder by a copy, or "
        "delete what is no checkpoint."
    )
    with pytest.raises(InputError, match="no finished checkpoint"):
        chosen_step(folder / "nowhere")


def test_only_names_of_steps_are_steps(folder):
    for name in ("007", "-3", "10.damaged", "11.orbax-checkpoint-tmp", "notes", "\u0661"):
        (folder / name).mkdir()
    (folder / "20").write_text("a file")
    assert steps_of(folder) == [3, 6, 9]


def test_later_steps_are_set_aside_under_free_names(folder):
    (folder / "9.damaged").mkdir()
    set_aside(folder, 3)
    assert sorted(path.name for path in folder.iterdir()) == [
        *("3", "6.left", "9.damaged", "9.left")
    ]
    assert (folder / "9.left" / FILES[0]).exists()
