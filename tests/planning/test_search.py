import pytest

from rl4p.planning.search import largest


@pytest.mark.parametrize(
    ("limit", "start", "expected"),
    [(100, 16, 64), (100, 64, 64), (100, 1000, 64), (5, 64, 4), (1, 64, None), (999, 16, 256)],
)
def test_the_largest_power_of_two_is_found_from_either_side(limit, start, expected):
    tried = []

    def fits(value):
        tried.append(value)
        return value <= limit

    assert largest(fits, start, least=2, most=256) == expected
    assert len(tried) == len(set(tried))
