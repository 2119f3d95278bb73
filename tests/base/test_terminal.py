"""Text of others on the terminal: shown, and never acting on it."""

import io
import logging
import re
import sys
from pathlib import Path

import pytest

import rl4p
from rl4p import command
from rl4p.base.errors import InputError, report
from rl4p.base.terminal import (
    VisibleRecord,
    VisibleStream,
    make_logs_visible,
    visible,
    write,
)
from tests.support.hostile_text import ACTS, hostile


@hostile
def test_text_is_visible(text):
    assert not ACTS.search(visible(text))
    assert visible(text + "\n\t").endswith("\n\t")
    assert visible("\n", keep="") == "<U+000A>"


def test_what_can_be_seen_stays():
    text = "1+1 é \N{SNOWMAN} \N{GRINNING FACE} 中文\n\ttab"
    assert visible(text) == text


@hostile
@pytest.mark.parametrize("error", [InputError, ValueError])
def test_errors_are_visible(capsys, text, error):
    try:
        raise error(text)
    except error as raised:
        report(raised)
    write(text)
    shown = capsys.readouterr()
    assert not ACTS.search(shown.err + shown.out)
    assert visible(text).splitlines()[0] in shown.err


@pytest.fixture
def logged():
    """A logger whose records are visible, and what it wrote."""
    before, out, logger = logging.getLogRecordFactory(), io.StringIO(), logging.Logger("x")
    logger.addHandler(logging.StreamHandler(out))
    make_logs_visible()
    yield logger, out
    logging.setLogRecordFactory(before)


@hostile
def test_logs_are_visible(logged, text):
    logger, out = logged
    logger.warning("%s", text)
    logger.warning(text)
    try:
        raise ValueError(text)
    except ValueError:
        logger.exception("failed")
    assert not ACTS.search(out.getvalue())
    assert "ValueError: " in out.getvalue()


@hostile
def test_a_stream_is_visible(text):
    out = io.StringIO()
    print(text, file=VisibleStream(out), flush=True)
    assert out.getvalue() == visible(text) + "\n"


def test_a_stream_outlives_the_one_that_it_writes_to():
    """Python 3.13 tells of an exception while the collector closes it."""
    out = io.TextIOWrapper(io.BytesIO())
    stream = VisibleStream(out)
    out.close()
    stream.close()


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "words", [["--cfg", "job"], ["--help"], ["--info", "defaults"], ["-sc", "query=bash"]]
)
def test_what_hydra_prints_is_visible(tmp_path, monkeypatch, capsys, words):
    name = "x\x1b[2J\u202e"
    (tmp_path / "data").mkdir()
    (tmp_path / f"data/{name}.yaml").write_text("_target_: rl4p.data.rows.Memory\n")
    monkeypatch.setenv("COMP_LINE", f"rl4p-train --config-dir {tmp_path} data=")
    monkeypatch.setattr(sys, "argv", ["rl4p-train"])
    argv = ["--config-dir", str(tmp_path), *words, "+tracker.experiment2=\u202ex"][: 2 + len(words)]
    with pytest.MonkeyPatch.context():
        try:
            command.main("train", print, argv=argv)
        except SystemExit as ended:
            assert not ended.code  # noqa: PT017
    shown = capsys.readouterr().out
    assert shown
    assert not ACTS.search(shown)


def test_an_entry_point_makes_logs_visible(tmp_path, monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", True)
    before = logging.getLogRecordFactory()
    try:
        command.main("train", print, argv=["--cfg", "job"])
        assert logging.getLogRecordFactory() is VisibleRecord
    finally:
        logging.setLogRecordFactory(before)


def test_nothing_is_printed_in_another_way():
    modules = [*Path(rl4p.__file__).parent.rglob("*.py")]
    allowed = {"terminal.py", "completion.py", "commands.py", "trial_child.py"}
    allowed |= {"sandbox_child.py", "worker_child.py", "sandbox.py", "workers.py"}
    assert len(modules) > 300
    for path in modules:
        if path.name not in allowed:
            code = re.sub(r'(?s)"""|\'\'\'', "", path.read_text())
            assert not re.search(r"(?<![.\w])print\(|\bConsole\(|print_exc", code), path
