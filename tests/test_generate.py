"""Tests the entry point: its help and its errors need no JAX."""

import subprocess
import sys

import rl4p.generate
from rl4p.configuration.schema import Root
from rl4p.tools.generation import job
from rl4p.tools.generation.options import OF_BOTH, OF_POLICY, GenerateOptions, Server


def test_the_help_imports_no_jax():
    script = (
        "import sys\nfrom rl4p.generate import main\n"
        "code = main(['--help']); assert 'jax' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "python -m rl4p.generate run=FOLDER out=FILE" in done.stdout


def test_the_help_names_every_option_and_the_keys_are_those_of_the_configuration():
    text = rl4p.generate.__doc__
    for name in GenerateOptions.__annotations__.keys() - {"server"}:
        assert f"{name}=" in text, name
    for name in Server.__annotations__.keys() - {"url"}:
        assert f"server.{name}=" in text, name
    assert {*OF_BOTH, *OF_POLICY} <= Root.__annotations__.keys()


def test_a_wrong_argument_ends_with_code_2(capsys):
    assert rl4p.generate.main(["out=a", "stps=1"]) == 2
    assert "stps=1 has no effect on rl4p.generate" in capsys.readouterr().err


def test_the_arguments_reach_the_job(monkeypatch):
    called = []
    monkeypatch.setattr(job, "generate", called.append)
    assert rl4p.generate.main(["out=a"]) == 0
    assert called == [["out=a"]]
