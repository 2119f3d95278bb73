"""Tests the entry point."""

import json
from dataclasses import fields

import rl4p.regrade
from rl4p.command.commands import RegradeOptions


def test_a_file_is_graded_by_one_command(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text('{"prompt": "1+1", "answer": "2", "response": "#### 2"}\n')
    arguments = [f"file={tmp_path / 'a.jsonl'}", f"out={tmp_path / 'new' / 'b.jsonl'}"]
    assert rl4p.regrade.main(arguments) == 0, capsys.readouterr().err
    (row,) = map(json.loads, (tmp_path / "new" / "b.jsonl").read_text().splitlines())
    assert row["terms"]["correct"] == 1.0
    assert "b.jsonl: 1 graded response\n" in capsys.readouterr().out


def test_the_help_names_every_option(capsys):
    assert rl4p.regrade.main(["--help"]) == 0
    text = capsys.readouterr().out
    for field in fields(RegradeOptions):
        assert f"{field.name}=" in text, field.name


def test_a_wrong_argument_ends_with_code_2(tmp_path, capsys):
    assert rl4p.regrade.main([f"out={tmp_path / 'b.jsonl'}"]) == 2
    assert "Give run=FOLDER or file=FILE" in capsys.readouterr().err
