"""Tests the words of metrics in titles and on axes."""

import matplotlib.figure
import pytest
from matplotlib.image import imread

from rl4p.runs.pictures import (
    COLOURS,
    GREY,
    formats,
    in_print,
    in_words,
    legend,
    panels,
    plain,
    plot_collector,
    plot_learning_curve,
    title,
)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["reward/mean"], "mean reward of the samples"),
        (["eval/sums/pass_at_1"], "greedy pass@1 on held-out sums"),
        (["eval/a/b/pass_at_16"], "pass@16 on held-out a/b"),
        (["eval/sums/avg_at_8"], "mean pass@1 of 8 samples on held-out sums"),
        (["eval/sums/loss"], "loss on held-out sums"),
        (["eval/a/pass_at_1", "eval/b/pass_at_1"], "mean greedy pass@1 on 2 held-out tasks"),
        (["eval/a/loss", "eval/b/pass_at_1"], "mean of eval/a/loss, eval/b/pass_at_1"),
        (["reward/$own"], "reward/$own"),
    ],
)
def test_a_metric_has_words_or_stays_as_it_is(names, words):
    assert in_words(*names) == words


def test_a_title_begins_with_a_capital_letter():
    assert title("pass@1 of KL") == "Pass@1 of KL"


def luminance(colour):
    """Returns the relative luminance of a colour, by WCAG."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return sum(x * weight for x, weight in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))


@pytest.mark.parametrize("page", ["#ffffff", "#1e2129", "#0d1117"])
def test_texts_and_lines_are_visible_on_light_and_dark_pages(page):
    for colour, least in ((GREY, 3.8), *((colour, 1.9) for colour in COLOURS)):
        low, high = sorted((luminance(colour), luminance(page)))
        assert (high + 0.05) / (low + 0.05) >= least, (colour, page)


def test_panels_stand_in_rows_and_have_one_axis_each():
    figure, axes = panels(3, size=(4.0, 3.0), columns=2)
    assert len(figure.axes) == 3
    assert [each.get_subplotspec().num1 for each in axes] == [0, 1, 2]
    assert figure.get_facecolor()[3] == 0


@pytest.mark.parametrize(("lines", "shown"), [(1, False), (2, True)])
def test_a_legend_explains_several_lines_only(lines, shown):
    _, (axes,) = panels(1, size=(4.0, 3.0))
    for index in range(lines):
        axes.plot([0, 1], label=str(index))
    legend(axes)
    assert (axes.get_legend() is not None) == shown


def test_a_text_is_neither_a_formula_nor_a_control_character():
    assert plain("$a$ \x1b") == r"\$a\$ <U+001B>"


@pytest.mark.slow
def test_equal_figures_are_equal_files():
    def drawn():
        with in_print():
            figure, (axes,) = panels(1, size=(2.0, 2.0))
            axes.plot([0, 1])
            return formats(figure)

    assert drawn() == drawn()
    assert drawn().keys() == {"pdf", "svg"}


A, B = "eval/a/pass_at_1", "eval/b/pass_at_1"
ROWS = [
    {"step": 0, A: 0.1, B: 0.5, "eval/a/prompts": 9.0},
    {"step": 1, "reward/mean": 0.25},
    {"step": 2, "reward/mean": 0.75, A: 0.4},
    {"step": 3, "reward/mean": -1.5, A: 0.6, B: 0.9},
]


@pytest.fixture
def draw(monkeypatch, tmp_path):
    """Returns a function that plots rows; it returns both panels and the path of the picture."""

    def drawn(rows):
        figures = []

        class Kept(matplotlib.figure.Figure):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                figures.append(self)

        monkeypatch.setattr(matplotlib.figure, "Figure", Kept)
        path = tmp_path / "plots" / "deep" / "curve.png"
        plot_learning_curve(rows, path)
        ((axes, reward_axes),) = [figure.axes for figure in figures]
        return axes, reward_axes, path

    return drawn


def points(axes):
    return {
        line.get_label(): list(zip(line.get_xdata(), line.get_ydata(), strict=True))
        for line in axes.get_lines()
    }


def test_each_curve_has_its_steps_and_its_name(draw):
    axes, reward_axes, path = draw(ROWS)
    tasks = [f"greedy pass@1 on held-out {task}" for task in "ab"]
    assert points(axes) == {
        tasks[0]: [(0, 0.1), (2, 0.4), (3, 0.6)],
        tasks[1]: [(0, 0.5), (3, 0.9)],
    }
    reward = "mean reward of the samples"
    assert points(reward_axes) == {reward: [(1, 0.25), (2, 0.75), (3, -1.5)]}
    assert [text.get_text() for text in axes.get_legend().get_texts()] == tasks
    assert axes.get_title() == "Greedy pass@1, held-out prompts"
    assert reward_axes.get_title() == "Mean reward of the samples"
    assert reward_axes.get_xlabel() == "step"
    assert axes.get_shared_x_axes().joined(axes, reward_axes)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_ticks_of_few_steps_are_whole_steps(draw):
    rows = [{"step": step, "reward/mean": 0.5, "eval/sums/pass_at_1": 0.5} for step in (0, 1, 2)]
    for axes in draw(rows)[:2]:
        assert all(tick.is_integer() for tick in axes.get_xticks())


def test_shares_fill_their_axis_and_the_picture_is_transparent(draw):
    axes, reward_axes, path = draw(ROWS)
    assert axes.get_ylim() == (-0.02, 1.02)
    pixels = imread(path)
    assert pixels[0, 0, 3] == 0
    assert (pixels[..., 3] > 0).mean() < 0.2  # the background shows through
    low, high = reward_axes.get_ylim()
    assert low < -1.5 < 0.75 < high


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "task", ["a$b$", "$x^{2", "$$", r"\$5 to $6", "a_b^c", "x % y", "#", "数学"]
)
def test_the_name_of_a_task_is_no_formula(draw, task, recwarn):
    rows = [{"step": 1, "reward/mean": 0.5, f"eval/{task}/pass_at_1": 1.0}]
    axes, _, path = draw(rows)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert axes.get_title().replace(r"\$", "$") == f"Greedy pass@1 on held-out {task}"


def test_a_run_without_a_step_has_no_plot(tmp_path):
    waits = {"time/step": 1.0, "time/trainer_waits": 0.5}
    for row in ({"step": 0, A: 0.1}, {"step": 1} | waits, {"step": 1, "collector/own": 1.0}):
        plot_learning_curve([row], tmp_path / "curve.png")
        plot_collector([row], tmp_path / "collector.png")
    assert not list(tmp_path.iterdir())
    plot_collector([{"step": 1, "collector/queue": 1.0} | waits], tmp_path / "collector.png")
    assert [path.name for path in tmp_path.iterdir()] == ["collector.png"]


def test_a_picture_is_drawn_anew(draw):
    _, _, path = draw(ROWS)
    first = path.read_bytes()
    draw([*ROWS, {"step": 4, "reward/mean": 3.0, A: 1.0}])
    assert path.read_bytes() != first
