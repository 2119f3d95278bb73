"""Tests the terminal output of a run, and that responses cannot insert control characters."""

import io
import re
from contextlib import ExitStack
from itertools import pairwise

import pytest
from rich.console import Console

from rl4p.distributed.counting import counted
from rl4p.loop.stopwatch import COMPILES, doing
from rl4p.runs import progress, remaining_time
from rl4p.runs.progress import (
    ProgressBar,
    ResponseBar,
    activity_words,
    print_summary,
    shorten,
    time_table,
)
from rl4p.runs.remaining_time import RemainingTime
from tests.support.clock import Clock
from tests.support.logs import info

BEAT = progress.BEAT


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in (progress, remaining_time):
        monkeypatch.setattr(module, "clock", clock)
    monkeypatch.setattr(progress, "BEAT", 1e9)  # the thread does nothing
    return clock


@pytest.fixture
def printed(capsys, monkeypatch, clock):
    """Returns a function that calls a progress bar and returns the lines that it prints.

    Each step takes two seconds.
    """
    monkeypatch.setenv("COLUMNS", "200")

    def lines(infos, *, steps=10, lines_every=5, samples_every=0, begin=(0, {}), every=0, **more):
        time = RemainingTime(steps, every)
        with ProgressBar(steps, lines_every, samples_every, time=time, **more) as bar:
            bar.begin(*begin)
            for each in infos:
                clock.now += 2.0
                bar(each)
        return capsys.readouterr().out.splitlines()

    return lines


def test_a_plain_line_comes_now_and_then_and_at_the_end(printed):
    lines = printed([info(step) for step in range(1, 13)], steps=12)
    assert lines == [
        "step 5/12  reward 0.250  1,234 tokens/s  2.00 s/step, 14 s left",
        "step 10/12  reward 0.250  1,234 tokens/s  2.00 s/step, 4 s left",
        "step 12/12  reward 0.250  1,234 tokens/s  2.00 s/step, 0 s left",
    ]


def test_the_newest_evaluation_stays_in_sight(printed):
    lines = printed(
        [
            info(1),
            info(2, **{"eval/sums/pass_at_1": 0.5, "eval/sums/prompts": 8.0}),
            info(3),
        ],
        lines_every=1,
        begin=(0, {"eval/sums/pass_at_1": 0.125}),
    )
    assert [line.partition("  reward 0.250  ")[2].partition("1,234")[0] for line in lines] == [
        "sums pass@1 0.125  ",
        "sums pass@1 0.500  ",
        "sums pass@1 0.500  ",
    ]


def test_all_tasks_are_named_and_a_step_that_sampled_nothing_has_no_rate(printed):
    """A collector that samples ahead has such steps."""
    (line,) = printed([info(5, **{"eval/a/pass_at_1": 0.5, "eval/b/pass_at_1": 1.0})])
    assert "a pass@1 0.500  b pass@1 1.000  1,234 tokens/s" in line
    later = info(5)
    del later.metrics["rollout/tokens_per_second"]
    (line,) = printed([later])
    assert line == "step 5/10  reward 0.250  2.00 s/step, 10 s left"


def test_a_plain_line_is_one_line_at_any_width(printed, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    (line,) = printed([info(5, **{"eval/a/pass_at_1": 0.5, "eval/b/pass_at_1": 1.0})])
    assert len(line) > 80


LINE = re.compile(r"step (?P<step>\d+)/(?P<steps>\d+)(?P<fields>(  \S+( \S+)*)+)")


def test_every_line_of_a_run_parses_by_one_expression_at_width_40(printed, monkeypatch, clock):
    monkeypatch.setenv("COLUMNS", "40")
    scores = {"eval/a/pass_at_1": 0.5, "eval/b/pass_at_1": 1.0}
    memory = {"memory/used_gib": 41.25, "memory/peak_gib": 63.0}
    response = "a  response\n\nof\tlines " + 30 * "and words "
    infos = [info(step, response=response, **scores, **memory) for step in range(1, 5)]
    lines = printed(infos, lines_every=1, samples_every=2)
    assert len(lines) == 6
    parsed = [LINE.fullmatch(line) for line in lines]
    assert all(parsed), lines
    assert [int(each["step"]) for each in parsed if each] == [1, 2, 2, 3, 4, 4]
    assert lines[0].endswith("  2.00 s/step, 18 s left  memory 41.2 GiB, peak 63.0 GiB")


def test_after_a_silence_a_line_says_what_the_run_does(monkeypatch, capsys, clock):
    with ProgressBar(10, 5, 0) as bar:
        clock.now += 51
        bar.show_activity()
        assert capsys.readouterr().out == "step 0/10  working for 51 s\n"
        bar.begin(3, {})
        with doing("reward", clock.now):
            clock.now += 51
            bar.show_activity()
            bar.show_activity()
            assert capsys.readouterr().out == "step 3/10  grading for 51 s\n"
            monkeypatch.setitem(COMPILES, "since", clock.now)
            clock.now += 70
            bar.show_activity()
            assert capsys.readouterr().out == "step 3/10  compiling for 70 s\n"


@pytest.mark.parametrize(
    ("part", "counts", "words"),
    [
        ("rollout", {"rollout": ("sequences", 256, 143, 12340)},
         "rollout 143 of 256 sequences, 1,234 tokens/s for 10 s"),
        ("reward", {"reward": ("grades", 2048, 1024, 0)}, "grading 1,024 of 2,048 grades for 10 s"),
        ("reward", {"reward": ("grades", 0, 0, 0)}, "grading for 10 s"),
        ("evaluation", {"evaluation": ("prompts", 1319, 256, 0), "rollout": ("rows", 8, 3, 50)},
         "evaluating 256 of 1,319 prompts, 3 of 8 rows, 5 tokens/s for 10 s"),
        ("trainer_waits", {"rollout": ("sequences", 8, 3, 50)},
         "waiting for samples, 3 of 8 sequences, 5 tokens/s for 10 s"),
        ("update", {"rollout": ("sequences", 8, 3, 50)}, "update for 10 s"),
    ],
)  # fmt: skip
def test_a_line_says_how_much_of_a_phase_is_done(clock, part, counts, words):
    with ExitStack() as stack:
        for phase, (unit, total, done, tokens) in counts.items():
            count = stack.enter_context(counted(phase, unit, total))
            count.add(done, tokens=tokens)
            count.began = clock.now - 10
        assert activity_words(part, clock.now - 10) == words


@pytest.mark.parametrize(("terminal", "most"), [(True, 2.0), (False, 60.0)])
def test_no_silence_is_long_in_a_compilation_and_in_long_steps(monkeypatch, clock, terminal, most):
    """The run compiles for 200 s, and then has three steps of 60 s."""
    bar, texts, times = ProgressBar(3, 1, 0), [], [clock.now]

    def note(text):
        if [text] != texts[-1:]:
            texts.append(text)
            times.append(clock.now)

    monkeypatch.setattr(bar.console, "_force_terminal", terminal)
    monkeypatch.setattr(bar.console, "print", lambda text, **_: note(text))
    if terminal:
        monkeypatch.setattr(bar.bar, "update", lambda _, description, **__: note(description))
    bar.begin(0, {})
    for step, seconds in enumerate((200, 60, 60, 60)):
        with doing("rollout" if step else "compile", clock.now):
            for _ in range(int(seconds / BEAT)):
                clock.now += BEAT
                bar.show_activity()
        if step:
            bar(info(step))
    assert clock.now - times[0] == 380.0
    assert max(b - a for a, b in pairwise([*times, clock.now])) <= most
    assert len(texts) >= 380 / most


def test_a_thread_shows_it_while_the_main_thread_is_busy(monkeypatch, capsys):
    monkeypatch.setattr(progress, "SILENCE", 0.0)
    monkeypatch.setattr(progress, "BEAT", 0.01)
    printed = ""
    with ProgressBar(10, 5, 0), doing("rollout", progress.clock()):
        while "rollout for 0 s" not in printed:
            printed += capsys.readouterr().out


def test_a_quiet_bar_prints_nothing(printed):
    assert printed([info(5)], samples_every=1, quiet=True) == []


def test_the_first_sample_is_shown_when_it_is_its_turn(printed):
    lines = printed([info(step) for step in range(1, 5)], samples_every=2)
    assert lines == [
        f"step {step}/10  sample: 1+2?  ->  #### 3  reward 1.50, answer 3" for step in (2, 4)
    ]


def test_a_models_text_is_no_markup_and_moves_no_cursor(printed):
    (line,) = printed(
        [info(1, response="[red]x[/red]\x1b[2J\n:smile: y")], samples_every=1, lines_every=100
    )
    assert "[red]x[/red]<U+001B>[2J :smile: y" in line


def test_a_bar_goes_on_from_the_step_of_the_checkpoint():
    bar = ProgressBar(10, 5, 0)
    assert bar.every == 1
    assert bar.bar.disable  # without a terminal
    assert not bar.console.is_terminal
    bar.begin(4, {})
    (task,) = bar.bar.tasks
    assert (task.completed, task.total) == (4, 10)
    bar(info(7))
    assert task.completed == 7
    assert "reward 0.250" in task.description


@pytest.mark.parametrize(
    ("text", "limit", "line"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "ab…"),
        ("a\nb", 9, "a b"),
        ("a\x00b\u2028c", 19, "a<U+0000>b<U+2028>c"),
        ("", 3, ""),
        ("x" * 160, 160, "x" * 160),
    ],
)
def test_a_text_becomes_one_printable_line(text, limit, line):
    assert shorten(text, limit) == line
    assert shorten("x" * 161) == "x" * 159 + "…"


SUMMARY = {
    "status": "finished",
    "step": 4,
    "evaluation": {
        "first": {"eval/a/pass_at_1": 0.25, "eval/a/prompts": 8.0},
        "last": {"eval/a/pass_at_1": 0.5, "eval/a/prompts": 8.0, "eval/b/pass_at_1": 1.0},
        "best": {"eval/a/pass_at_1": 0.75, "eval/b/pass_at_1": 1.0},
    },
    "seconds": {"total": 20.0, "compile": 3.0, "rollout": 9.0, "update": 6.0},
    "median_seconds": {"rollout": 2.0, "update": 1.25},
    "compilation": {"seconds": 3.4, "programs": 7, "from_cache": 2},
    "idle_steps": {"skipped": 0, "zero_gradient": 2},
}


def words(text):
    return [line.split() for line in text.splitlines()]


@pytest.mark.parametrize("width", ["40", "200"])
def test_the_summary_has_each_task_first_last_and_best(tmp_path, capsys, monkeypatch, width):
    """Of the files, those that exist are named."""
    monkeypatch.setenv("COLUMNS", width)
    (tmp_path / "plots").mkdir()
    for name in ("metrics.jsonl", "plots/learning_curve.png"):
        (tmp_path / name).touch()
    print_summary(tmp_path, SUMMARY)
    out = capsys.readouterr().out
    lines = words(out)
    assert lines[0] == ["held", "out", "first", "last", "best"]
    assert lines[1] == ["a/pass_at_1", "0.250", "0.500", "0.750"]
    assert lines[2] == ["b/pass_at_1", "-", "1.000", "1.000"]
    assert "prompts" not in out
    assert ["time", "seconds", "share", "median", "per", "step"] in lines
    assert "the rest" in out
    assert out.splitlines()[-2:] == [
        "finished at step 4 after 20 s, of which 3 s to compile 7 programs (2 from the cache)",
        f"{tmp_path}: metrics.jsonl, plots/learning_curve.png",
    ]


def test_times_add_up_to_the_whole(capsys):
    Console(width=200).print(time_table(SUMMARY))
    assert words(capsys.readouterr().out) == [
        ["time", "seconds", "share", "median", "per", "step"],
        ["rollout", "9.0", "45.0", "%", "2.000"],
        ["update", "6.0", "30.0", "%", "1.250"],
        ["compilation", "3.0", "15.0", "%"],
        ["the", "rest", "2.0", "10.0", "%"],
    ]


def test_phases_in_the_background_are_no_part_of_the_whole(capsys):
    seconds = {"total": 20.0, "compile": 2.0, "rollout": 17.0, "reward": 1.0, "update": 6.0}
    seconds["trainer_waits"] = 4.0
    medians = {"rollout": 2.0, "reward": 0.5, "update": 1.25, "trainer_waits": 1.0}
    Console(width=200).print(time_table({"seconds": seconds, "median_seconds": medians}))
    assert words(capsys.readouterr().out)[1:] == [
        ["rollout", "17.0", "in", "background", "2.000"],
        ["reward", "1.0", "in", "background", "0.500"],
        ["update", "6.0", "30.0", "%", "1.250"],
        ["trainer", "waits", "4.0", "20.0", "%", "1.000"],
        ["compilation", "2.0", "10.0", "%"],
        ["the", "rest", "8.0", "40.0", "%"],
    ]


def test_the_last_lines_say_that_steps_did_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    print_summary(tmp_path, SUMMARY | {"idle_steps": {"skipped": 1, "zero_gradient": 3}})
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "1 of 4 steps were skipped and changed nothing: their gradients were infinite or nan "
        "(update/skipped).",
        "3 of 4 steps changed nothing: their gradients were 0 (update/grad_norm).",
    ]
    print_summary(tmp_path, SUMMARY | {"step": 0, "status": "stopped"})
    out = capsys.readouterr().out
    assert "stopped at step 0" in out
    assert "the rest" not in out  # a run of no step has no times


def printed_bar(done, counts, total=1000, **options):
    console = Console(file=io.StringIO(), width=80, **options)
    with ResponseBar(console, total, done) as bar:
        for count in counts:
            bar.show(count)
    return console.file.getvalue()


def test_without_a_terminal_each_tenth_is_a_line():
    text = printed_bar(130, range(131, 1001))
    assert text.splitlines() == [
        *(f"{n}00 of 1,000 responses" for n in range(2, 10)),
        "1,000 of 1,000 responses",
    ]
    assert printed_bar(0, [999]).splitlines() == ["999 of 1,000 responses"]


def test_a_terminal_gets_a_bar():
    assert "7/1000" in printed_bar(0, [7], force_terminal=True)
