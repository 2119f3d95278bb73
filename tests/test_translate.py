"""Tests the entry point: it needs no JAX, and prints a command that the command line accepts."""

import json
import shlex
import subprocess
import sys
from dataclasses import fields

import pytest

import rl4p.translate
from rl4p import configuration
from rl4p.tools.translation import TranslateOptions

TRL = {"num_generations": 4, "per_device_train_batch_size": 4, "beta": 0.04, "tf32": True}


@pytest.mark.slow
def test_it_runs_without_jax(tmp_path):
    (tmp_path / "grpo.json").write_text(json.dumps(TRL))
    script = (
        "import sys\nfrom rl4p.translate import main\n"
        "code = main(['grpo.json', 'devices=8']); assert 'jax' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    command, _, rest = done.stdout.partition("\n\n")
    words = shlex.split(command.replace("\\\n", " "))
    assert words[:3] == ["python", "-m", "rl4p.train"]
    config = configuration.compose(words[3:])
    assert (config.prompts_per_step, config.group_size, config.kl.beta) == (8, 4, 0.04)
    assert "KL penalty        0.04 x k3 in the loss                 none\n" in rest
    assert "default of TRL 1.16.0 (trl/trainer/grpo_config.py)" in rest
    assert "tf32: no counterpart\n" in rest


def test_words_replace_those_of_the_file(tmp_path, capsys):
    (tmp_path / "grpo.yaml").write_text("num_generations: 4\nlearning_rate: 1.0e-5\n")
    assert rl4p.translate.main([str(tmp_path / "grpo.yaml"), "learning_rate=2e-5"]) == 0
    assert " optimizer.learning_rate=2e-05 " in capsys.readouterr().out


def test_the_help_names_every_option(capsys):
    assert rl4p.translate.main(["--help"]) == 0
    text = capsys.readouterr().out
    for field in fields(TranslateOptions):
        assert f"{field.name}=" in text, field.name


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", None, "a.yaml cannot be read: "),
        ("a.yaml", "a: [1", "a.yaml cannot be read: "),
        ("a.yaml", "- beta", "a.yaml is not a mapping."),
        ("a.json", '{"one": 1}', "a.json has no key that TRL or verl has."),
        ("a.sh", "echo 'beta", "a.sh cannot be read: No closing quotation."),
        ("a.sh", "", "a.sh has no key that TRL or verl has."),
        ("a.yaml", "beta: high", "beta=high is not a number"),
    ],
)
def test_a_bad_file_gets_one_sentence(tmp_path, monkeypatch, capsys, name, text, message):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / name).write_text(text)
    assert rl4p.translate.main([name]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(message)
    assert errors.count("\n") == 1


def test_a_command_without_words_says_what_it_needs(capsys):
    assert rl4p.translate.main([]) == 2
    assert capsys.readouterr().err == "Give a file or words of TRL or verl; see --help.\n"
