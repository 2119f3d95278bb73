import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.loop.digest import check_digest, digest_of


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"metadata": {"b": 2, "a": 1}}, True),  # the order of keys
        ({"metadata": {"a": 1, "b": 3}}, False),
        ({"answer": "other"}, False),
        ({"drawn_by": None}, True),
        ({"drawn_by": "replay"}, False),
        ({"metadata": {"a": np.int64(1), "b": 2}}, True),
        ({"metadata": {"a": np.int64(2), "b": 2}}, False),
    ],
)
def test_a_digest_is_of_all_fields(make_prompt, change, same):
    usual = {"id": "a", "metadata": {"a": 1, "b": 2}}
    prompts = [make_prompt(**usual), make_prompt(**usual | change)]
    assert (digest_of(prompts[:1]) == digest_of(prompts[1:])) is same


def middle(value):
    array = np.zeros(2000, np.int32)
    array[1000] = value
    return array


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (middle(0), middle(1)),  # the text of both is the same
        ([middle(0)], [middle(1)]),
        (middle(0), middle(0).astype(np.int64)),
        (middle(0), middle(0).reshape(2, 1000)),
        ({"a", "b"}, {"a", "c"}),
    ],
)
def test_a_digest_is_of_whole_arrays(make_prompt, one, other):
    prompts = [make_prompt(metadata={"a": each}) for each in (one, one, other)]
    first, same, different = (digest_of([prompt]) for prompt in prompts)
    assert first == same != different


def test_a_digest_depends_on_the_order_and_the_number_of_prompts(make_prompt):
    a, b = make_prompt(id="a"), make_prompt(id="b")
    digests = {digest_of(prompts) for prompts in ([a], [b], [a, b], [b, a], [a, a])}
    assert len(digests) == 5


def test_another_digest_is_refused():
    check_digest("a", "a")
    with pytest.raises(InputError, match="The prompts are not those that the run started with"):
        check_digest("a", "b")
