"""Tests the grammar of commands: every entry point takes the same words for the same things."""

import importlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rl4p import regrade, samples
from rl4p.base.errors import InputError, Stopped
from rl4p.command import command_line
from rl4p.command.commands import (
    SEVERAL,
    Checkpoint,
    Grammar,
    build,
    is_document_with,
    is_page_of,
    options_of,
    prepare_process,
    read,
    refuse_other_file,
    refuse_without_effect,
    run_command,
)
from rl4p.configuration.trust import CONF
from rl4p.tools.browser.job import SAMPLES
from rl4p.tools.comparison.job import COMPARE

# The words of each command that reads a run, what it needs beside the run, and the name of what it
# writes. rl4p.train and rl4p.plan have a --help of Hydra.
COMMANDS = {
    "plan": ({"run", "out"}, ""),
    "export": ({"run", "step", "checkpoint", "average", "out"}, "out=b"),
    "send": ({"run"}, ""),
    "evaluate": ({"run", "step", "checkpoint", "average", "out"}, "out=b"),
    "generate": ({"run", "step", "checkpoint", "average", "out"}, "out=b"),
    "regrade": ({"run", "file", "out"}, "out=b"),
    "samples": ({"run", "file", "out", "step"}, ""),
    "compare": ({"run", "out"}, ""),
    "serve": ({"run", "step", "checkpoint", "average"}, ""),
}
# The value and the meaning of a word that several commands have, as --help shows them.
WORDS = {
    "run": ("FOLDER", "a run; run=latest is the run of outputs/runs that was started last"),
    "file": ("FILE", "responses as JSON lines, of rl4p.generate, rl4p.evaluate or your own"),
    "step": ("N", "the checkpoint after step N; without it the newest"),
    "checkpoint": ("best", "the best checkpoint, by the checkpoint.best of the run"),
    "average": ("true", "the moving average of the parameters (ema.decay)"),
    "out": ("PATH", "where the result is written"),
}
SEVERAL_RUNS = ("send", "compare")
NO_RUN = r"is not the folder of a run|has no run|has no samples|does not exist: give the folder"


def refusal(name: str, *words: str) -> str:
    """Returns the error message of a real entry point, which runs until it reads the run."""
    if name in ("train", "plan"):
        with pytest.raises(InputError) as error:
            command_line.launch(
                name, pytest.fail, pytest.fail, None, list(words), CONF, reads_runs=name == "plan"
            )
        return str(error.value)
    module = importlib.import_module(f"rl4p.{name}")
    with pytest.MonkeyPatch.context() as patch:
        printed: list[str] = []
        patch.setattr("sys.stderr", type("Text", (), {"write": lambda _, x: printed.append(x)})())
        assert module.main(list(words)) == 2
    assert "".join(printed).count("\n") == 1
    return "".join(printed)


@pytest.fixture
def nothing(tmp_path, monkeypatch) -> Path:
    """Returns an empty folder, which is no run, beside an empty working directory."""
    folder = tmp_path / "an=empty folder"
    folder.mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return folder


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("way", ["run", "path", "latest"])
def test_every_command_reads_a_run_by_the_same_words(name, way, nothing):
    word = {"run": f"run={nothing}", "path": str(nothing), "latest": "latest"}[way]
    message = refusal(name, word, *shlex.split(COMMANDS[name][1]))
    if way == "latest":
        assert message.startswith("run=latest: there is no run under")
    else:
        assert re.search(NO_RUN, message)
        assert str(nothing) in message


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("word", WORDS)
def test_every_command_takes_a_word_or_refuses_it(name, word, nothing):
    words, needs = COMMANDS[name]
    if name == "plan" and word not in words:
        return  # the configuration refuses it, once the run was read
    value = {"step": "3", "average": "true", "checkpoint": "best"}.get(word, "x")
    given = [f"run={nothing}", *shlex.split(needs)]
    given = [each for each in given if not each.startswith(f"{word}=")]
    message = refusal(name, *given, f"{word}={value}")
    taken = re.search(NO_RUN, message) or "run=FOLDER or file=FILE" in message
    assert bool(taken) == (word in words), message


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("old", ["resume", "runs", "sweep", "folder"])
def test_another_word_for_a_run_is_refused_with_the_right_one(name, old):
    message = refusal(name, f"{old}=a/b")
    assert message.strip() == f"{old} is not a word of rl4p.{name}: write run=a/b"


@pytest.mark.parametrize("name", [name for name in COMMANDS if "out" in COMMANDS[name][0]])
@pytest.mark.parametrize("old", ["html", "output", "output_dir"])
def test_another_word_for_the_result_is_refused_with_the_right_one(name, old):
    message = refusal(name, f"{old}=a")
    assert message.strip() == f"{old} is not a word of rl4p.{name}: write out=a"


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"plan"}))
def test_a_flag_is_refused_with_the_word(name):
    assert "no flag; options have no dashes: write run=a" in refusal(name, "--run", "a")
    assert "no flag; options have no dashes: write run=a" in refusal(name, "--resume=a")


@pytest.mark.slow
def test_training_continues_a_run_by_a_word_of_its_own(nothing):
    assert "write resume=" in refusal("train", "run=a")
    assert "write hydra.run.dir=a" in refusal("train", "out=a")
    assert "write resume=latest" in refusal("train", "latest")
    folder = nothing.rename(nothing.with_name("plain"))
    assert refusal("train", str(folder)).endswith("--help lists the keys.")
    (folder / "metrics.jsonl").touch()
    assert refusal("train", str(folder)).endswith(f"write resume={folder}")


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"plan"}))
def test_every_help_looks_alike(name, capsys):
    module = importlib.import_module(f"rl4p.{name}")
    assert module.main(["--help"]) == module.main(["-h"]) == 0
    text = capsys.readouterr().out
    lines = text[: len(text) // 2].splitlines()
    assert re.fullmatch(r"[A-Z].*[.?]", lines[0])
    assert lines[2].startswith(f"    python -m rl4p.{name} run=")
    listed = lines[lines.index("Words") :]
    for word in COMMANDS[name][0]:
        (line,) = [line for line in listed if line.startswith(f"  {word}=")]
        value, meaning = line.split(maxsplit=1)
        if (name, word) != ("samples", "step"):  # which selects lines of a file
            assert meaning.startswith(WORDS[word][1])
        assert word == "out" or value == f"{word}={WORDS[word][0]}"
    grammars = *vars(module).values(), {"samples": SAMPLES, "compare": COMPARE}.get(name)
    command = next(x for x in grammars if isinstance(x, Grammar))
    words = {word.partition("=")[0] + "=" for word in lines if re.match(r"  [a-z_.]+=", word)}
    assert {word.strip() for word in words} <= set(command.words())
    others = WORDS.keys() - COMMANDS[name][0]
    assert not [line for line in listed if line.partition("=")[0].strip() in others]


@dataclass(frozen=True, kw_only=True)
class Either:
    run: str | None = None
    file: str | None = None


@dataclass(frozen=True, kw_only=True)
class Runs:
    run: SEVERAL


@pytest.mark.parametrize(
    ("words", "folders"),
    [
        (["run=a"], ("a",)),
        (["run=a,b"], ("a", "b")),
        (["run=[a, b c]"], ("a", "b c")),
        (["run='a,b',\"é\""], ("a,b", "é")),
        (["run=2026-11-23,1"], ("2026-11-23", "1")),
        (["./a", "b/c", "/d,e"], ("./a", "b/c", "/d,e")),
    ],
)
def test_several_runs_are_a_list_or_several_paths(words, folders):
    assert read(words, Grammar(name="x", kind=Runs)).options == Runs(run=folders)


def test_a_folder_that_exists_is_taken_as_it_is_written(tmp_path):
    (tmp_path / "a,[b=c").mkdir()
    for word in (f"run={tmp_path}/a,[b=c", f"{tmp_path}/a,[b=c"):
        assert read([word], Grammar(name="x", kind=Runs)).options.run == (f"{tmp_path}/a,[b=c",)


@pytest.mark.parametrize("value", ["[a", "[]", "{a: b}", "[[a]]"])
def test_what_is_no_list_of_folders_is_refused(value):
    with pytest.raises(InputError, match="is not a list of folders such as A,B"):
        read([f"run={value}"], Grammar(name="x", kind=Runs))


def test_a_path_to_a_file_is_a_file(tmp_path):
    either, checkpoint = (Grammar(name="x", kind=kind) for kind in (Either, Checkpoint))
    (tmp_path / "a.jsonl").touch()
    assert read([str(tmp_path / "a.jsonl")], either).options.file == f"{tmp_path}/a.jsonl"
    assert read([str(tmp_path)], either).options.run == str(tmp_path)
    assert read([str(tmp_path / "a.jsonl")], checkpoint).options.run is not None


def test_yaml_of_the_users_own_is_found_by_every_command_that_composes():
    for words in (["--config-dir", "c", "data=a"], ["data=a", "--config-dir=c"]):
        line = read(words, Grammar(name="x", kind=Checkpoint, composes=True))
        assert (line.config_dir, line.overrides) == ("c", ["data=a"])
    with pytest.raises(InputError, match=r"^--config-dir is no flag"):
        read(["--config-dir", "c"], Grammar(name="x", kind=Checkpoint))


@pytest.mark.parametrize(
    "line", ["+term@reward.terms.x=format", "~reward.terms.x", "reward=a", "seed"]
)
def test_overrides_that_act_are_accepted(line):
    refuse_without_effect([line], ["reward"], Grammar(name="x", kind=Checkpoint))


@pytest.mark.parametrize("line", ["term@teacher=a", "+hooks.a=b", "rewards=a"])
def test_overrides_that_do_not_act_are_refused(line):
    with pytest.raises(
        InputError, match=r"has no effect on rl4p.x.* \(of the configuration it takes"
    ):
        refuse_without_effect([line], ["reward"], Grammar(name="x", kind=Checkpoint))


@dataclass(frozen=True, kw_only=True)
class Section:
    url: str
    model: str = "m"
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Options:
    out: str
    run: str | None = None
    count: int = 1
    share: float = 0.5
    yes: bool = False
    server: Any = None


def read_lines(*lines):
    command = Grammar(name="x", kind=Options, sections={"server": Section}, composes=True)
    return options_of(lines, command)


def test_own_keys_are_options_and_all_others_overrides():
    options, overrides = read_lines("out=a", "data=gsm8k", "count=3", "+x.y=1", "model.path=b")
    assert options == Options(out="a", count=3)
    assert overrides == ["data=gsm8k", "+x.y=1", "model.path=b"]


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("out=a b,c (d)=e+[f]", "a b,c (d)=e+[f]"),
        ("out='a b'", "a b"),
        ('out="é"', "é"),
        ("out='", "'"),
        ("out=1", "1"),
        ("run=null", None),
        ("out=null", "null"),
        ("count=3", 3),
        ("share=1e-3", 0.001),
        ("yes=true", True),
    ],
)
def test_a_text_is_taken_as_it_stands_and_other_values_are_parsed(line, value):
    key = line.partition("=")[0]
    options, _ = read_lines(line, *(["out=a"] if key != "out" else []))
    assert getattr(options, key) == value


def test_a_section_takes_its_first_field_without_a_name():
    lines = ("out=a", "server=http://a:1/v1", "server.model=m", "server.body={a: 1, b: null}")
    options, overrides = read_lines(*lines)
    body = {"a": 1, "b": None}
    assert options.server == Section(url="http://a:1/v1", model="m", body=body)
    assert overrides == []


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("out",), "out is not KEY=VALUE: write out=VALUE"),
        (("out=",), "out= has no value"),
        (("out=a", "out=b"), "out is given twice"),
        (("server=a", "server.url=b"), "server.url is given twice"),
        (("out.a=b",), "out.a does not exist: out is a value"),
        (("count=1,2",), "count=1,2 has several values"),
        (("count=[1",), r"count=\[1 cannot be read"),
    ],
)
def test_a_wrong_argument_is_said_in_a_sentence(lines, message):
    with pytest.raises(InputError, match=message):
        read_lines(*lines)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"out": "a", "count": "b"}, "count must be a valid integer, not 'b'"),
        ({"out": "a", "yes": 1}, "yes must be a valid boolean"),
        ({"count": 1}, "Give out=PATH: rl4p.x needs it; see --help"),
        ({"out": "a", "cout": 1}, "cout is not an option of rl4p.x; did you mean count?"),
    ],
)
def test_options_are_checked(tree, message):
    assert build({"out": "a"}, Options, "", "rl4p.x") == Options(out="a")
    with pytest.raises(InputError, match=message):
        build(tree, Options, "", "rl4p.x")


def test_a_job_ends_with_the_exit_code_of_its_error(capsys):
    def job_that_raises(error):
        def job(arguments):
            assert arguments == ["a=b"]
            if error is not None:
                raise error

        return run_command(Grammar(name="x", kind=Options), "How to use it.", job, ["a=b"])

    assert job_that_raises(None) == 0
    assert job_that_raises(InputError("Wrong.")) == 2
    assert job_that_raises(Stopped("Saved.")) == 3
    assert capsys.readouterr().err == "Wrong.\nSaved.\n"
    assert job_that_raises(ZeroDivisionError()) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_runs_nothing(word, capsys):
    command, job = Grammar(name="x", kind=Options), lambda _: pytest.fail("ran")
    assert run_command(command, "\nHow to use it.\n", job, ["out=a", word]) == 0
    assert capsys.readouterr().out == "How to use it.\n"


def test_help_may_be_read_in_part():
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "rl4p.export", "--help"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


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
    prepare_process()
    print(TEXT)
    print(TEXT, file=sys.stderr)
    assert written(out).decode(encoding).rstrip() == shown
    assert "\\ud800" in written(error).decode(encoding)  # nothing of an error is lost


def test_streams_that_have_no_encoding_stay(monkeypatch):
    for stream in (None, io.StringIO()):
        monkeypatch.setattr(sys, "stdout", stream)
        prepare_process()
        assert sys.stdout is stream


@pytest.mark.quick(3)
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


PAGE = '<!doctype html>\n<meta name="generator" content="rl4p.samples">'


@pytest.mark.parametrize(
    ("content", "made", "refused"),
    [
        (None, is_page_of("samples"), False),
        ("", is_page_of("samples"), False),
        (PAGE, is_page_of("samples"), False),
        (PAGE, is_page_of("compare"), True),
        ("x" * 5000 + PAGE, is_page_of("samples"), True),
        ("mine", is_page_of("samples"), True),
        ('{"fits": true, "verdict": ""}', is_document_with("fits", "verdict"), False),
        ('{"fits": true}', is_document_with("fits", "verdict"), True),
        ('["fits", "verdict"]', is_document_with("fits", "verdict"), True),
        ("[" * 100_000, is_document_with("fits"), True),
        ("\udc80", is_document_with("fits"), True),
    ],
)
def test_only_an_earlier_result_is_replaced(tmp_path, content, made, refused):
    out = tmp_path / "out"
    if content is not None:
        out.write_bytes(content.encode(errors="surrogateescape"))
    if not refused:
        return refuse_other_file(out, "plan", made)
    with pytest.raises(InputError, match=f"^out={out} exists and was not made by rl4p.plan: name"):
        refuse_other_file(out, "plan", made)
    sentence = f"^out={tmp_path}: {out} exists and was not made by rl4p.plan: name another"
    with pytest.raises(InputError, match=sentence):
        refuse_other_file(tmp_path, "plan", made, file=out)
    return None


def test_what_is_no_regular_file_is_refused(tmp_path):
    made = is_page_of("samples")
    with pytest.raises(InputError, match=f"^out={tmp_path} is a folder: name a file"):
        refuse_other_file(tmp_path, "samples", made)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe is a device or a pipe: name a file"):
        refuse_other_file(tmp_path / "pipe", "samples", made)
    with pytest.raises(InputError, match="cannot be read: File name too long"):
        refuse_other_file(tmp_path / ("a" * 300), "samples", made)
