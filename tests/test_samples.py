"""Tests the entry point: it needs no JAX."""

import subprocess
import sys

import rl4p.samples
from rl4p.tools.browser.job import SamplesOptions
from rl4p.tools.browser.samples import SampleFilter


def test_it_runs_without_jax(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": "1+1", "response": "2"}\n')
    script = (
        "import sys\nfrom rl4p.samples import main\n"
        "code = main(['a.jsonl']); assert 'jax' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "1+1\n2\n" in done.stdout


def test_the_help_names_every_option(capsys):
    assert rl4p.samples.main(["--help"]) == 0
    text = capsys.readouterr().out
    for name in SampleFilter.__annotations__.keys() | SamplesOptions.__annotations__.keys():
        assert f"{name}=" in text, name


def test_a_wrong_argument_ends_with_code_2(capsys):
    assert rl4p.samples.main([]) == 2
    assert rl4p.samples.main(["run=nowhere"]) == 2
    assert "nowhere does not exist" in capsys.readouterr().err
