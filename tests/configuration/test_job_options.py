from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from rl4p.configuration.job_options import build, run_job, split
from rl4p.errors import InputError, Stopped


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


def options_of(*lines):
    return split(lines, Options, {"server": Section})


def test_own_keys_are_options_and_all_others_overrides():
    tree, overrides = options_of("out=a", "data=gsm8k", "count=3", "+x.y=1", "model.path=b", "-m")
    assert tree == {"out": "a", "count": 3}
    assert overrides == ["data=gsm8k", "+x.y=1", "model.path=b", "-m"]


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
    assert options_of(line) == ({key: value}, [])


def test_a_section_takes_its_first_field_without_a_name():
    lines = ("server=http://a:1/v1", "server.model=m", "server.body={a: 1, b: null}")
    tree, overrides = options_of(*lines)
    body = {"a": 1, "b": None}
    assert tree == {"server": {"url": "http://a:1/v1", "model": "m", "body": body}}
    assert overrides == []


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("out",), "out is not of the form KEY=VALUE"),
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
        options_of(*lines)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"out": "a", "count": "b"}, "count must be a valid integer, not 'b'"),
        ({"out": "a", "yes": 1}, "yes must be a valid boolean"),
        ({"count": 1}, "out is missing: rl4p.x needs it"),
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

        return run_job("How to use it.", job, ["a=b"])

    assert job_that_raises(None) == 0
    assert job_that_raises(InputError("Wrong.")) == 2
    assert job_that_raises(Stopped("Saved.")) == 3
    assert capsys.readouterr().err == "Wrong.\nSaved.\n"
    assert job_that_raises(ZeroDivisionError()) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["-h", "--help", "help"])
def test_help_runs_nothing(word, capsys):
    assert run_job("\nHow to use it.\n", lambda _: pytest.fail("ran"), ["out=a", word]) == 0
    assert capsys.readouterr().out == "How to use it.\n"
