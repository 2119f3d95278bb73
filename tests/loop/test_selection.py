import pytest

from rl4p.base.errors import InputError
from rl4p.loop.selection import matches, property_of, rounded, split_by


@pytest.fixture
def prompt(make_prompt):
    return make_prompt(id="x", task="sums", metadata={"level": 2})


def test_properties_are_the_task_the_id_and_the_metadata(prompt):
    assert [property_of(prompt, name) for name in ("task", "id", "level")] == ["sums", "x", 2]
    with pytest.raises(InputError, match="x has no size: choose one of task, id, level"):
        property_of(prompt, "size")


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ({"level": 2}, True),
        ({"level": [1, 2]}, True),
        ({"level": 1}, False),
        ({"task": "sums", "level": (2,)}, True),
        ({"task": "other", "level": 2}, False),
    ],
)
def test_all_properties_must_match(prompt, where, found):
    assert matches(prompt, where) is found


def test_prompts_are_split_in_their_order(make_prompt):
    prompts = [make_prompt(id=str(i), metadata={"level": i % 2}) for i in range(4)]
    assert split_by(prompts, "level") == {"0": prompts[::2], "1": prompts[1::2]}


def test_a_number_is_rounded_by_chance_and_right_on_average():
    assert {rounded(3.0, 0, seed) for seed in range(50)} == {3}
    found = [rounded(2.25, 0, seed) for seed in range(2000)]
    assert set(found) == {2, 3}
    assert abs(sum(found) / 2000 - 2.25) < 0.03
