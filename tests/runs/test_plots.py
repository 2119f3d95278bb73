"""Tests that the learning curve shows each number of the record at its step."""

import matplotlib.figure
import pytest
from matplotlib.image import imread

from rl4p.runs.plots import plot_collector, plot_learning_curve

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


def test_shares_fill_their_axis_and_the_picture_is_transparent(draw):
    axes, reward_axes, path = draw(ROWS)
    assert axes.get_ylim() == (-0.02, 1.02)
    pixels = imread(path)
    assert pixels[0, 0, 3] == 0
    assert (pixels[..., 3] > 0).mean() < 0.2  # the background shows through
    low, high = reward_axes.get_ylim()
    assert low < -1.5 < 0.75 < high


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
