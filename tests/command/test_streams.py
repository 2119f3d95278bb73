"""Tests that a stream that lacks a character replaces it, in every command."""

import io
import json
import sys

import pytest

from rl4p import regrade, samples
from rl4p.command.streams import replace_what_cannot_be_shown

TEXT = "答案 2 🙂 — naïve ₽ \ud800"


@pytest.fixture
def streams(monkeypatch):
    """Returns a function that replaces the standard streams by ones of an encoding."""

    def replaced(encoding, errors="strict"):
        made = [io.TextIOWrapper(io.BytesIO(), encoding, errors) for _ in range(2)]
        monkeypatch.setattr(sys, "stdout", made[0])
        monkeypatch.setattr(sys, "stderr", made[1])
        return made

    return replaced


def written(stream):
    stream.flush()
    return stream.buffer.getvalue()


@pytest.mark.parametrize(
    ("encoding", "errors", "shown"),
    [
        ("ascii", "strict", "?? 2 ? ? na?ve ? ?"),
        ("ascii", "surrogateescape", "?? 2 ? ? na?ve ? ?"),  # in the locale C
        ("latin-1", "strict", "?? 2 ? ? naïve ? ?"),
        ("cp1252", "strict", "?? 2 ? — naïve ? ?"),
        ("cp866", "strict", "?? 2 ? ? na?ve ? ?"),
        ("koi8-r", "strict", "?? 2 ? ? na?ve ? ?"),
        ("cp1251", "strict", "?? 2 ? — na?ve ? ?"),
        ("gbk", "strict", "答案 2 ? — na?ve ? ?"),
        ("shift_jis", "strict", "答案 2 ? ? na?ve ? ?"),
        ("utf-8", "strict", "答案 2 🙂 — naïve ₽ ?"),
        ("utf-16-le", "strict", "答案 2 🙂 — naïve ₽ ?"),
    ],
)
def test_what_a_stream_lacks_is_replaced(streams, encoding, errors, shown):
    out, error = streams(encoding, errors)
    replace_what_cannot_be_shown()
    print(TEXT)
    print(TEXT, file=sys.stderr)
    assert written(out).decode(encoding).rstrip() == shown
    assert "\\ud800" in written(error).decode(encoding)  # nothing of an error is lost


def test_streams_that_have_no_encoding_stay(monkeypatch):
    for stream in (None, io.StringIO()):
        monkeypatch.setattr(sys, "stdout", stream)
        replace_what_cannot_be_shown()
        assert sys.stdout is stream


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "shift_jis", "utf-8"])
def test_commands_show_what_a_terminal_lacks(streams, tmp_path, encoding):
    path, out = tmp_path / "rows.jsonl", tmp_path / "graded.jsonl"
    row = {"prompt": TEXT, "answer": "2", "response": f"{TEXT} #### 2", "task": "数学"}
    path.write_text(json.dumps(row) + "\n")
    shown, _ = streams(encoding)
    assert regrade.main([f"file={path}", f"out={out}"]) == 0
    assert "1 response, mean grades: correct 1.0000" in written(shown).decode(encoding)
    assert samples.main([str(out)]) == 0
    assert "right" in written(shown).decode(encoding)
