import pytest
from pydantic import TypeAdapter, ValidationError

from rl4p.engine.serving import fields


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("Count", [0, 2**31 - 1], [-1, 2**31, 1.0, True, "1"]),
        ("PositiveCount", [1, 2**31 - 1], [0, 2**31]),
        ("Seed", [-(2**63), 2**63 - 1], [2**63, 0.5]),
        ("TopK", [-1, 2**31 - 1], [-2, 2**31]),
        ("TopP", [1, 0.5, 1e-6], [0, 1e-60, 1.5, -1, True]),
        ("Temperature", [0, 1, 1e-3, 1_000_000], [-1, 9e-4, 1_000_001, float("inf"), 10**400]),
        ("Logprobs", [0, 20], [-1, 21]),
        ("PromptLogprobs", [0], [1, -1]),
        ("Name", ["", "a" * 256], ["a" * 257, 3]),
        ("NonEmpty", ["a"], ["", 3]),
        ("One", [1, 1.0], [0, 1.5, True]),
        ("AlwaysTrue", [True], [False, "a"]),
        ("Version", ["a"], ["", "a" * 257]),
        ("Path", ["/a"], ["a" * 4097, 3]),
        ("TokenIds", [[], [0, 2**31 - 1]], [[-1], [2**31], [True], [1.0], [0, "a"], {"a": 1}]),
        ("Prompt", ["", [1], [[1], []], ["a", [1]]], [[], {}, [1, "a"], [True], [[1], [-1]], 3]),
        ("Texts", ["a", ["a"]], [[], [1], 3]),
        ("InputIds", [[], [1], [[1], [2]]], [["a"], [[1], 2], "a"]),
        ("RequestIds", ["a", ["a", "b"]], [3, ["a" * 257]]),
    ],
)
def test_the_values_of_types(name, right, wrong):
    adapter = TypeAdapter(getattr(fields, name), config={"strict": True})
    for value in right:
        assert adapter.validate_python(value) == value
    for value in wrong:
        with pytest.raises(ValidationError) as error:
            adapter.validate_python(value)
        assert error.value.error_count() == 1


def test_stops_are_a_string_or_several():
    adapter = TypeAdapter(fields.Stops, config={"strict": True})
    assert adapter.validate_python("a") == ("a",)
    assert adapter.validate_python(["a"] * 16) == ("a",) * 16
    for wrong in (3, [""], ["a"] * 17, ["a" * 4097], {"a": 1}):
        with pytest.raises(ValidationError, match="a string or at most 16 strings"):
            adapter.validate_python(wrong)


def test_stop_tokens_have_a_limit():
    adapter = TypeAdapter(fields.StopTokens, config={"strict": True})
    assert adapter.validate_python([0] * 128) == (0,) * 128
    for wrong in (3, [0] * 129, [-1], [True]):
        with pytest.raises(ValidationError, match="a list of at most 128 token ids"):
            adapter.validate_python(wrong)


def test_a_long_wrong_list_is_read_up_to_its_first_error():
    adapter = TypeAdapter(fields.TokenIds, config={"strict": True})
    with pytest.raises(ValidationError) as error:
        adapter.validate_python(["a"] * 1000)
    assert error.value.error_count() == 1
