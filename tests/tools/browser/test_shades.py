import math
import re
from itertools import pairwise

import pytest

from rl4p.tools.browser.shades import SHADES, shade


@pytest.mark.parametrize(
    ("p", "index"), [(1.0, 0), (0.91, 0), (0.89, 1), (0.4, 2), (0.02, 3), (0.009, 4), (1e-30, 4)]
)
def test_a_token_has_the_shade_of_its_probability(p, index):
    assert shade(math.log(p)) == index


def test_odd_log_probabilities():
    assert [shade(x) for x in (None, math.nan)] == [None, None]
    assert shade(-math.inf) == len(SHADES) - 1
    assert shade(1e-6) == 0  # by rounding


def luminance(colour):
    """Returns the relative luminance of #rrggbb (WCAG 2)."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_shades_can_be_read_and_are_ordered_by_lightness():
    """Lightness is what every kind of colour vision sees."""
    backgrounds = []
    for each in SHADES[1:]:
        ink, paper = map(luminance, re.findall(r"#\w{6}", each.terminal))
        contrast = (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05)
        assert contrast >= 4, each
        backgrounds.append(paper)
    assert backgrounds == sorted(backgrounds, reverse=True)
    for a, b in pairwise(backgrounds):
        assert (a + 0.05) / (b + 0.05) > 1.4
