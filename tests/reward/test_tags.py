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


def test_tags_of_the_chat_template_count(make_prompt, make_episodes):
    def grade(response, before):
        prompts = (make_prompt(generation_prompt=before),)
        return Tags()(make_episodes((response,), prompts))[0]

    response = "2 and 2</think><answer>4</answer>"
    assert grade(response, "<|assistant|><think>\n") == 1
    assert grade(response, None) == 1  # not known: the response shows it
    assert grade(response, "<|assistant|>") == 0.75
    assert grade(f"<think>{response}", "<|assistant|><think>\n") == 0.75  # twice
    assert grade("<answer>4</answer>", "<think>\n\n</think>\n\n") == 1
    assert grade("2 and 2", "<|assistant|><think>\n") == 0.25


@pytest.mark.parametrize(
    ("tags", "response", "share"),
    [
        (("==",), "==", 1),
        (("==",), "===", 0),  # at two places
        (("aba",), "ababa", 0),
        (("<a><a>",), "<a><a><a>", 0),
        (("ab", "bc"), "abc", 1),  # two tags that overlap
        (("bc", "ab"), "abc", 0.5),
        (("aa",), "aa aa", 0),
        (("aa",), "a" * 99, 0),
    ],
)
def test_overlapping_tags_occur_twice(make_episodes, tags, response, share):
    assert Tags(tags=tags)(make_episodes((response,))) == [share]


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
