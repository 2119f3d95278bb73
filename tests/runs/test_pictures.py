"""Tests the style of all pictures: transparent, plain texts, and files that are equal again."""

import pytest

from rl4p.runs.pictures import COLOURS, GREY, formats, in_print, legend, panels, plain


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


def test_equal_figures_are_equal_files():
    def drawn():
        with in_print():
            figure, (axes,) = panels(1, size=(2.0, 2.0))
            axes.plot([0, 1])
            return formats(figure)

    assert drawn() == drawn()
    assert drawn().keys() == {"pdf", "svg"}
