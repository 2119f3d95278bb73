"""Tests the completion in a real bash, with the script that an installation makes."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rl4p.command.completion import query
from rl4p.configuration.composition import CONF

# Presses Tab: calls the registered function as bash does, and prints the words it offers.
TAB = r"""
eval "$({script} -sc install=bash)"
COMP_LINE="$1" COMP_POINT=${{#1}}
read -ra COMP_WORDS <<< "$1"
[[ "$1" == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
registered=$(complete -p {script})
function=$(sed 's/.*-F \([^ ]*\) .*/\1/' <<< "$registered")
"$function" {script} "${{COMP_WORDS[COMP_CWORD]}}"
printf '%s\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory) -> Path:
    """A folder with the scripts that an installation makes for the entry points."""
    folder = tmp_path_factory.mktemp("bin")
    for name in ("train", "plan", "generate", "samples"):
        script = folder / f"rl4p-{name}"
        script.write_text(
            f"#!{sys.executable}\nimport sys\nfrom rl4p.{name} import main\nsys.exit(main())\n"
        )
        script.chmod(0o755)
    return folder


@pytest.fixture
def tab(scripts, tmp_path):
    """A function that returns the words offered for a line; nothing may be printed beside them."""

    def press(line: str, script: str = "rl4p-train") -> list[str]:
        ran = subprocess.run(
            ["bash", "-c", TAB.format(script=script), "bash", line],
            cwd=tmp_path,
            env=os.environ | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"},
            capture_output=True,
            text=True,
        )
        assert ran.stderr == ""
        return ran.stdout.split()

    return press


@pytest.fixture
def offered(tmp_path, monkeypatch, capsys):
    """A function like `tab`, without a shell: it calls the entry point in this process."""
    monkeypatch.chdir(tmp_path)

    def words(line: str) -> list[str]:
        script = line.split()[0]
        monkeypatch.setattr(sys, "argv", [script, "-sc", "query=bash"])
        monkeypatch.setenv("COMP_LINE", line)
        importlib.import_module(f"rl4p.{script.removeprefix('rl4p-')}").main()
        printed = capsys.readouterr()
        assert printed.err == ""
        return printed.out.split()

    return words


@pytest.mark.slow
def test_groups_options_and_keys_are_completed(tab, offered):
    for press in (tab, offered):
        assert press("rl4p-train advantage=gr") == ["advantage=grpo"]
    assert offered("rl4p-train adv") == ["advantage.", "advantage="]
    assert offered("rl4p-train advantage=rloo optimizer.learning") == ["optimizer.learning_rate="]
    assert offered("rl4p-train group") == ["group_size="]


@pytest.mark.slow
def test_the_keys_are_those_of_the_chosen_options(tab):
    assert "update.beta=" in tab("rl4p-train update=dpo update.")
    assert "update.beta=" not in tab("rl4p-train update.")


@pytest.mark.slow
def test_every_script_that_composes_has_it(tab):
    assert "mesh=v5e_8" in tab("rl4p-plan mesh=v5e", script="rl4p-plan")


@pytest.mark.slow
def test_flags_are_completed(tab):
    assert tab("rl4p-train --mul") == ["--multirun"]
    assert tab("rl4p-train --config-") == ["--config-dir"]  # the others are refused


@pytest.mark.slow
def test_a_wrong_line_offers_what_it_can_and_prints_no_error(tab):
    assert tab("rl4p-train advantage=grpoo advantage.eps") == []
    assert tab("rl4p-train help optimizer.le") == []
    assert tab("rl4p-train batch_size=1 rollout=na") == ["rollout=naive_sampler"]


@pytest.mark.slow
def test_options_of_the_users_own_are_completed(tab, tmp_path):
    (tmp_path / "mine/advantage").mkdir(parents=True)
    (tmp_path / "mine/advantage/better.yaml").write_text("_target_: my_phases.Better\n")
    assert tab("rl4p-train --config-dir mine advantage=be") == ["advantage=better"]
    assert tab("rl4p-train --config-dir=mine advantage=be") == ["advantage=better"]
    assert tab("rl4p-train advantage=be") == []


@pytest.mark.parametrize(
    ("shell", "words"),
    [("bash", "reward.terms.x=format"), ("zsh", "+term@reward.terms.x=format")],
)
def test_options_that_need_a_place_are_completed(shell, words, capsys):
    """For Bash an @ ends a word, so that only what follows it is completed."""
    query("train", CONF, f"query={shell}", "rl4p-train +term@reward.terms.x=fo")
    assert capsys.readouterr().out.split() == [words]


@pytest.mark.slow
def test_runs_to_resume_are_completed(tab, tmp_path):
    assert tab("rl4p-train resume=") == ["resume=latest"]
    folder = tmp_path / "outputs/runs/2026-11-23/10-00-00-1"
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra/config.yaml").write_text("")
    (folder / "metrics.jsonl").write_text("")
    assert tab("rl4p-train resume=o") == ["resume=outputs/runs/2026-11-23/10-00-00-1"]


@pytest.mark.slow
def test_the_words_of_a_command_are_completed(tab, offered, tmp_path):
    (tmp_path / "a.jsonl").touch()
    assert set(tab("rl4p-samples r", script="rl4p-samples")) == {"run=", "right="}
    assert set(offered("rl4p-samples r")) == {"run=", "right="}
    assert offered("rl4p-samples run=") == ["run=latest"]
    assert offered("rl4p-samples file=./a") == ["file=./a.jsonl"]
    assert offered("rl4p-samples --") == ["--help"]
    assert offered("rl4p-samples group") == []


def test_the_words_of_a_command_are_beside_the_keys_of_the_configuration(offered):
    line = "rl4p-generate run=latest data=gsm8k "
    words = offered(f"{line}s")
    assert words[:3] == ["step=", "split=", "server="]
    assert "seed=" in words
    assert offered(f"{line}data.pa") == ["data.path="]
    assert offered("rl4p-generate --con") == ["--config-dir"]


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["install=bash"], 'not python -m: write eval "$(rl4p-train -sc install=bash)"\n'),
        (["query=bash"], "Only an installed script has shell completion"),
        (["install=tcsh"], "write -sc install=SHELL, with SHELL one of bash, zsh, fish."),
        ([], "write -sc install=SHELL"),
    ],
)
def test_what_cannot_be_completed_is_a_sentence(tmp_path, arguments, sentence):
    command = [sys.executable, "-m", "rl4p.train", "-sc", *arguments]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert sentence in ran.stderr
    assert ran.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_their_own_code(scripts, shell):
    command = [scripts / "rl4p-train", "--shell-completion", f"install={shell}"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "rl4p-train" in shown.stdout
    assert shown.stderr == ""
