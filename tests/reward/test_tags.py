import pytest

from rl4p.reward.tags import Tags


@pytest.mark.parametrize(
    ("response", "share"),
    [
        ("<think>a</think><answer>b</answer>", 1),
        ("x <think>\n</think> y <answer></answer> z", 1),
        ("<think>a</think>", 0.5),
        ("<think>a", 0.25),
        ("", 0),
        ("<answer>b</answer><think>a</think>", 0.5),
        ("</think><think><answer></answer>", 0.75),
        ("</answer><answer></think><think>", 0.25),
        ("<think>a</think><answer>b</answer><answer>c</answer>", 0.5),
        ("<think><think>a</think><answer>b</answer>", 0.75),
        ("<THINK>a</THINK>", 0),
    ],
)
def test_tags_count_once_and_in_order(make_episodes, response, share):
    assert Tags()(make_episodes((response,))) == [share]


def test_other_tags_can_be_required(make_episodes):
    term = Tags(tags=("<a>", "</a>", "<b>"))
    assert term(make_episodes(("<a> <b> </a>", "<a></a><b>"))) == pytest.approx([2 / 3, 1])


def test_long_responses_are_read_at_once(make_episodes):
    assert Tags()(make_episodes(("<think>" * 40_000, "<" * 240_000))) == [0, 0]


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ((), "different texts, at least one"),
        (("<a>", ""), "different texts, at least one"),
        (("<a>", "<a>"), "different texts, at least one"),
        (("a", "<a>"), "has a, which is also part of <a>"),
    ],
)
def test_tags_that_cannot_be_counted_are_refused(tags, message):
    with pytest.raises(ValueError, match=message):
        Tags(tags=tags)
