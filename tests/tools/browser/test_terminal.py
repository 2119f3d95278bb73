import io

import pytest
from rich.console import Console

from rl4p.tools.browser.terminal import show


@pytest.fixture
def printed(shown):
    def printed(*rows, numbers=False, **options):
        file = io.StringIO()
        console = Console(file=file, width=200, highlight=False, **options)
        show(console, [shown(row) for row in rows], "[b]Samples", numbers=numbers)
        return file.getvalue()

    return printed


def test_a_sample_with_its_grades_and_tokens(printed, full):
    text = printed(full)
    assert text.startswith("[b]Samples\n")
    assert (
        "step 20  arithmetic/1+2  sample 1  right  reward 1.5  (correct 1, format 1)  "
        "advantage +0.707  4 tokens  completed" in text
    )
    assert "<|user|>1+2<|end|><|assistant|>\n1+2=3 ####↵\n3<|end|>\nanswer 3" in text
    assert "\x1b" not in text


def test_shades_are_explained_only_where_there_are_colours(printed, full, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    colourless = printed(full)
    assert "0.1 to 0.5" not in colourless
    assert "or tokens=true" in colourless
    assert "0.1 to 0.5" in printed(
        full, force_terminal=False, color_system="truecolor", _environ={}
    )


def test_tokens_are_shaded_and_masked_ones_struck(printed, shown, full, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = printed(full, force_terminal=False, color_system="truecolor", _environ={})
    assert "not in the loss" in text
    coloured = io.StringIO()
    console = Console(file=coloured, width=200, force_terminal=True, color_system="truecolor")
    from rl4p.tools.browser.terminal import body

    console.print(body(shown(full)))
    text = coloured.getvalue()
    assert "\x1b[38;2;8;48;107;48;2;222;235;247m3 ####" in text  # p = 0.61
    assert "\x1b[38;2;8;48;107;48;2;158;202;225m3\x1b" in text  # p = 0.22
    assert "\x1b[2;9m<|end|>" in text  # dim and struck


def test_what_is_absent_is_left_out(printed, short):
    text = printed(short)
    assert "step 10  other/1  wrong  reward 0  (correct 0)\n" in text
    assert "these samples have no tokens" in text
    assert "2+2\n5\nanswer 4" in text


def test_hostile_text_is_neither_markup_nor_control(printed, hostile):
    text = printed(hostile, force_terminal=False)
    assert "\x1b" not in text
    assert "\x00" not in text
    assert "\u202e" not in text
    assert "[red]x[/red] <U+001B>[2J<U+0000> <U+202E>" in text


def test_the_numbers_of_each_token(printed, full):
    text = printed(full | {"tokens": full["tokens"] | {"advantages": [1, 1, 1, -2]}}, numbers=True)
    last = text.rstrip().splitlines()[-1].split()
    assert last == ["3", "<|end|>", "8", "-6.0000", "0.0025", "no", "-2.0000"]
    assert "3 ####↵\\n" in text


def test_an_episode_turn_by_turn(printed, full):
    turns = [
        {"text": "t", "reward": 0.5, "tokens": 3, "versions": [4], "environment_seconds": 0.25},
        {"text": "u", "calls": [{"name": "add", "arguments": {"a": 1}}, {"malformed": "no JSON"}]},
        {"text": "v", "messages": [{"role": "tool", "content": "7"}], "metrics": {"tool_calls": 1}},
    ]
    text = printed(full | {"turns": turns, "failure": "TimeoutError: "})
    assert "turn 1  reward 0.5  3 tokens  weights 4  answered in 0.25 s\n" in text
    assert 'turn 2\n  calls add({"a": 1})\n  malformed call: no JSON\n  no answer\n' in text
    assert "turn 3  tool_calls 1\n  tool: 7\nthe environment failed: TimeoutError: \n" in text


def test_commands_stand_as_in_a_shell_with_their_outputs(printed, full):
    commands = ['cat <<E >a\n"x"\nE', "ls", "sleep 9"]
    contents = ["[exit code 0]", "a\nb\n[exit code 2]", "[exit code 7]\n[killed after 2 s]"]
    turn = {
        "text": "t",
        "calls": [{"name": "shell", "arguments": {"command": each}} for each in commands],
        "messages": [{"role": "tool", "content": each} for each in contents],
        "files": {"a": 4, "b/c": 12345},
    }
    assert (
        'turn 1\n  $ cat <<E >a↵\n  > "x"↵\n  > E\n  exit code 0\n'
        "  $ ls\n  a↵\n  b\n  exit code 2\n"
        "  $ sleep 9\n  [exit code 7]\n  killed after 2 s\n"
        "  files changed: a (4 bytes), b/c (12,345 bytes)\n"
    ) in printed(full | {"turns": [turn]})


def test_other_calls_show_texts_of_several_lines_below_them(printed, full):
    calls = [
        {"name": "submit", "arguments": {"n": 1, "source": 'a = "b"\nc'}},
        {"name": "run", "arguments": {"command": "ls", "seconds": 3}},
    ]
    messages = [{"role": "tool", "content": "[exit code 0]"}] * 2
    text = printed(full | {"turns": [{"text": "t", "calls": calls, "messages": messages}]})
    assert (
        'calls submit({"n": 1, "source": "below"})↵\n  source:↵\n  a = "b"↵\n  c\n'
        '  tool: [exit code 0]\n  calls run({"command": "ls", "seconds": 3})\n' in text
    )
