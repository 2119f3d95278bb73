import pytest

from rl4p.configuration.tree import differences, leaves


def test_values_have_dotted_keys():
    tree = {"a": {"b": 1, "c": {}}, "d": [{"e": 2}]}
    assert dict(leaves(tree)) == {"a.b": 1, "a.c": {}, "d[0].e": 2}
    assert dict(leaves(tree, lists=False)) == {"a.b": 1, "a.c": {}, "d": [{"e": 2}]}
    assert dict(leaves([], "key")) == {"key": []}


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 1}}, ""),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, "a.b was 1 and would be 2"),
        ({"a": None, "b": 1}, {"b": 1}, "a was None and would be absent"),
        ({"b": 1}, {"a": None, "b": 1}, "a was absent and would be None"),
        (
            {"b": 1, "c": 1},
            {"a": 1, "b": 2, "c": 1},
            "b was 1 and would be 2, a was absent and would be 1",
        ),
    ],
)
def test_values_that_are_absent_or_other_are_named(before, after, sentence):
    assert differences(before, after) == sentence


def test_the_differences_beyond_a_number_are_counted():
    before, after = dict.fromkeys("abcde", 1), dict.fromkeys("abcde", 2)
    assert differences(before, after, most=2) == (
        "a was 1 and would be 2, b was 1 and would be 2, and 3 more"
    )
    assert differences(before, after).endswith(", e was 1 and would be 2")
    assert not differences(before, before, most=2)
    assert "more" not in differences({"a": 1, "b": 1}, {"a": 2, "b": 2}, most=2)
