"""Tests which steps of a Dockerfile are taken, and which are refused."""

import io
import tarfile
from pathlib import Path

import pytest

from rl4p.base.errors import InputError
from rl4p.protocols.runtime import Image
from rl4p.rollout.runtimes.dockerfile import PATH, archive, instructions, steps_of


def image(folder: Path, text: str, **options) -> Image:
    (folder / "Dockerfile").write_text(text)
    (folder / "src" / "deep").mkdir(parents=True, exist_ok=True)
    for name in ("main.py", "notes.txt", "src/a.py", "src/deep/b.py"):
        (folder / name).write_text(name)
    return Image(name="t", context=folder, **options)


def names(steps) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(archive(steps.files))) as tar:
        return sorted(member.name for member in tar.getmembers() if member.isfile())


def test_steps_are_taken_in_their_order(tmp_path):
    text = (
        "# syntax=docker/dockerfile:1\nFROM python:3.13-slim\n"
        "ENV APP=/app MODE='a b' \\\n    # between\n    EMPTY=$NONE\nENV OLD two words\n"
        "workdir $APP\nWORKDIR src\nENV PATH=/opt/bin:$PATH\n"
        'CMD ["python"]\nLABEL a=b\nEXPOSE 80\n'
    )
    steps = steps_of(image(tmp_path, text, variables={"MODE": "c"}), built=False)
    assert steps.workdir == "/app/src"
    assert steps.variables == {
        "PATH": f"/opt/bin:{PATH}",
        "APP": "/app",
        "MODE": "c",
        "EMPTY": "",
        "OLD": "two words",
    }
    assert steps_of(image(tmp_path, text, workdir="/w"), built=False).workdir == "/w"


@pytest.mark.parametrize(
    ("copy", "files"),
    [
        ("main.py .", ["app/main.py"]),
        ("main.py /app", ["app/main.py"]),
        ("main.py /", ["main.py"]),
        ("main.py /etc/other", ["etc/other"]),
        ("main.py /etc/", ["etc/main.py"]),
        ("*.py *.txt lib/", ["app/lib/main.py", "app/lib/notes.txt"]),
        ("src /code", ["code/a.py", "code/deep/b.py"]),
        ('["src/deep", "x"]', ["app/x/b.py"]),
        (". .", [f"app/{x}" for x in ("Dockerfile", "main.py", "notes.txt")] + ["app/src/a.py"]),
    ],
)
def test_copied_files_have_the_places_that_docker_gives_them(tmp_path, copy, files):
    steps = steps_of(image(tmp_path, f"FROM a\nWORKDIR /app\nCOPY {copy}\n"), built=False)
    assert [name for name in names(steps) if not name.endswith("src/deep/b.py")] == sorted(files)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("FROM a\nRUN apt-get install \\\n  git", "the step RUN 'apt-get install   git'"),
        ("FROM a\nUSER me", "the step USER"),
        ("FROM a\nADD x.tar /", "the step ADD"),
        ("FROM a AS b\nFROM c", "the step FROM"),
        ("FROM a\nCOPY --from=b /x /y", "has an option"),
        ("FROM a\nCOPY absent /y", "there is no absent beside it"),
        ("FROM a\nCOPY ../secret /y", "there is no ../secret beside it"),
    ],
)
def test_other_steps_are_refused(tmp_path, text, says):
    (tmp_path / "secret").touch()
    inner = tmp_path / "environment"
    inner.mkdir()
    with pytest.raises(InputError) as error:
        steps_of(image(inner, text), built=False)
    assert says in str(error.value)


def test_what_is_in_a_built_image_is_not_done_again(tmp_path):
    text = (
        "FROM a AS b\nWORKDIR /no\nRUN make\nFROM c\nCOPY --from=b /x /y\nADD z /\nWORKDIR /app\n"
    )
    steps = steps_of(image(tmp_path, text), built=True)
    assert (steps.workdir, steps.files) == ("/app", [])
    assert list(instructions(tmp_path / "absent")) == []
