import pytest

from rl4p.reward.repetition import Repetition


@pytest.mark.parametrize(
    ("response", "n", "grade"),
    [
        ("a b c d", 2, 0),
        ("a b a b", 2, -1 / 3),  # ab ba ab
        ("a a a a a", 2, -3 / 4),
        ("A a\na  a", 2, -2 / 3),  # the size of letters and the kind of white space do not count
        ("a a a a a", 5, 0),
        ("a a a a", 5, 0),  # too short
        ("", 1, 0),
        ("a b a", 1, -1 / 3),
    ],
)
def test_repeated_words_are_penalized_by_their_share(make_episodes, response, n, grade):
    assert Repetition(n=n)(make_episodes((response,))) == pytest.approx([grade])


def test_characters_can_be_counted_instead(make_episodes):
    episodes = make_episodes(("aaaaa", "abcde", "abab"))
    assert Repetition(n=2, of="characters")(episodes) == pytest.approx([-3 / 4, 0, -1 / 3])
    assert Repetition(n=2)(episodes) == [0, 0, 0]


def test_long_responses_are_read_at_once(make_episodes):
    (grade,) = Repetition()(make_episodes(("a " * 120_000,)))
    assert grade == pytest.approx(-1, abs=1e-4)
