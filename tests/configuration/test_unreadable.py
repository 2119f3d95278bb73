import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from rl4p.configuration.unreadable import several_values, unknown_flags, unreadable


def message(*lines, index=0, options=()):
    return str(unreadable(lines, index, "reason", options))


@pytest.mark.parametrize(
    ("lines", "index", "words"),
    [
        (["seed", "=", "1"], 0, "seed=1"),
        (["seed", "=1"], 0, "seed=1"),
        (["seed=", "1"], 1, "seed=1"),
        (["seed=0,", "1,", "2", "steps=3"], 0, "-m seed=0,1,2"),
    ],
)
def test_an_override_that_spaces_divide_is_joined(lines, index, words):
    assert message(*lines, index=index).endswith(f"must not contain spaces: write {words}")


def test_words_on_both_sides_of_another_override_are_not_joined():
    assert message("a", "b=1") == "a is not KEY=VALUE: --help lists the keys."
    assert message("b=1", "a", index=1) == "a is not KEY=VALUE: --help lists the keys."


def test_a_home_folder_is_written_out(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me, too")
    assert message("data.path=~/a").endswith("write 'data.path=\"/home/me, too/a\"'")
    monkeypatch.setenv("HOME", "/home/me")
    assert message("data.path=~/a").endswith("write data.path=/home/me/a")
    assert "/home" not in message("data.path=~other/a")


@pytest.mark.parametrize("line", ["a=[1", "a={b", "a='b", 'a="b'])
def test_a_bracket_that_is_not_closed_is_no_text_to_quote(line):
    assert message(line) == f"{line} cannot be read as KEY=VALUE: reason"


def test_a_word_that_is_an_option_is_completed_with_its_group():
    options = [["advantage=reinforce"], ["update=reinforce"]]
    assert message("reinforce", options=options).endswith(
        "write advantage=reinforce or update=reinforce"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seed", "1"], "seed=1"),
        (["--seed=1", "--group-size", "4"], "seed=1 group_size=4"),
        (["--debug", "--seed=1"], "seed=1"),
        (["--lr", "1e-4"], "optimizer.learning_rate=1e-4"),
        (["--data-path", "a b"], "data=jsonl 'data.path=a b'"),
    ],
)
def test_flags_become_overrides(arguments, words):
    flags = [word for word in arguments if word.startswith("--")]
    found = str(unknown_flags(flags, arguments))
    assert found == f"{' '.join(flags)} is no flag; options have no dashes: write {words}"


def test_a_flag_without_a_value_has_no_correction():
    assert unknown_flags(["--nonsense"], ["--nonsense", "seed=1"]) is None


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("data.path=a,b", ": write 'data.path=\"a,b\"'"),
        ("trusted_targets=a,b", ": write 'trusted_targets=[a,b]'"),
        ("seed=range(3)", "sweep over them."),
        ("seed=choice(1,2)", "sweep over them."),
    ],
)
def test_several_values_are_a_sweep_or_one_value_in_quotes(line, words):
    override = OverridesParser.create().parse_override(line)
    assert str(several_values(override)).endswith(words)
