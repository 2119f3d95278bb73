"""Tests the figures for papers: their numbers, their fonts, and what a hostile name can do."""

import xml.etree.ElementTree as ElementTree

import pytest

from rl4p.tools.comparison import paper
from tests.support.compared_runs import compare, runs

NAMES = {f"{name}.{suffix}" for name in ("curve", "intervals") for suffix in ("pdf", "svg")}


def test_the_figures_show_every_seed_mean_and_interval():
    comparison = compare(runs(a=[0.1, 0.2, 0.3], b=[0.7, 0.8, 0.9], c=[0.5]))
    (axes,) = paper.intervals(comparison).axes
    lines = [sorted(line.get_xdata()) for line in axes.get_lines()]
    seeds, interval, (iqm,) = lines[:3]
    assert seeds == [0.7, 0.8, 0.9]
    assert interval == list(comparison.results[0].interval)
    assert iqm == pytest.approx(0.8)
    assert len(lines) == 3 + 2 + 3  # one seed has no interval
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        f"advantage={name}" for name in "bca"
    ]
    (axes,) = paper.curves(comparison).axes
    assert axes.get_lines()[0].get_ydata()[-1] == pytest.approx(0.8)
    assert axes.get_ylabel() == "Greedy pass@1 on held-out sums"
    assert axes.get_ylim() == (-0.02, 1.02)


def test_files_have_fonts_that_publishers_accept_and_are_equal_again():
    files = paper.figures(compare(runs(a=[0.1, 0.2, 0.3], b=[0.7, 0.8, 0.9])))
    assert files.keys() == NAMES
    assert files == paper.figures(compare(runs(a=[0.1, 0.2, 0.3], b=[0.7, 0.8, 0.9])))
    for name, content in files.items():
        assert content.startswith(b"%PDF" if name.endswith("pdf") else b"<?xml")
        assert b"/Type3" not in content


@pytest.mark.parametrize("name", ["$x^{2", "<script>a</script>&", "long " * 60, "w" * 400, "\x1b"])
def test_any_name_of_a_group_is_drawn(name):
    files = paper.figures(compare(runs(**{name: [0.1, 0.2, 0.3], "b": [0.7, 0.8, 0.9]})))
    tags = {each.tag for each in ElementTree.fromstring(files["intervals.svg"]).iter()}
    assert not any("script" in tag for tag in tags)
