"""Tests that a picture shows every accuracy at its value, with its interval."""

import pytest
from matplotlib.figure import Figure

from rl4p.tools.evaluation.picture import plot_bars, plot_curves, plot_evaluation


def score(value, *, samples=0):
    found = {"pass_at_1": value, "interval": [value - 0.1, value + 0.05], "samples": samples}
    ks = {"2": value, "4": value + 0.1} if samples else {}
    average = {"4": value - 0.1} if samples else {}
    return found | {
        "pass_at_k": ks,
        "pass_at_k_interval": {k: [x - 0.1, x + 0.1] for k, x in ks.items()},
        "avg_at_k": average,
        "avg_at_k_interval": {k: [x - 0.1, x + 0.1] for k, x in average.items()},
    }


def test_greedy_accuracies_are_bars():
    axes = Figure().add_subplot()
    plot_bars(axes, {"a": score(0.5), "b": score(0.75)})
    assert [bar.get_width() for bar in axes.patches] == [0.5, 0.75]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    (_, _, (segments,)) = axes.containers[0]  # the bars are the second container
    ends = [segment[:, 0].tolist() for segment in segments.get_segments()]
    assert ends == [pytest.approx([0.4, 0.55]), pytest.approx([0.65, 0.8])]


def test_curves_begin_with_the_mean_of_the_samples():
    axes = Figure().add_subplot()
    plot_curves(axes, {"a": score(0.5, samples=4), "b": score(0.75, samples=4)})
    a, b = axes.get_lines()
    assert a.get_xdata().tolist() == [1, 2, 4]
    assert b.get_ydata().tolist() == pytest.approx([0.65, 0.75, 0.85])
    assert (a.get_marker(), a.get_color()) != (b.get_marker(), b.get_color())


@pytest.mark.parametrize("samples", [0, 4])
def test_a_picture_is_written(tmp_path, samples):
    path = tmp_path / "plots" / "evaluation.png"
    plot_evaluation({"a": score(0.5, samples=samples)}, path)
    assert path.read_bytes().startswith(b"\x89PNG")
