import pytest

from rl4p.configuration.arguments import key_values, listed
from rl4p.errors import InputError

REQUIRED = {"resume": "RUN", "out": "FOLDER"}
OPTIONAL = {"dtype": ("float32", "bfloat16"), "trusted": None}


def test_values_are_found_by_key_in_any_order():
    given = key_values(["out=b", "trusted=[x=y]", "resume=a", "dtype=float32"], REQUIRED, OPTIONAL)
    assert given == {"resume": "a", "out": "b", "dtype": "float32", "trusted": "[x=y]"}
    assert key_values(["out=b", "resume=a"], REQUIRED, OPTIONAL) == {"resume": "a", "out": "b"}


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["resume=a"],
        ["out=b", "dtype=float32"],
        ["resume=a", "out="],
        ["resume=a", "out"],
        ["resume=a", "out=b", "trusted="],
        ["resume=a", "out=b", "dtyp=float32"],
        ["resume=a", "out=b", "--force"],
    ],
    ids=" ".join,
)
def test_what_is_missing_empty_or_unknown_is_answered_by_what_to_give(arguments):
    with pytest.raises(InputError) as refused:
        key_values(arguments, REQUIRED, OPTIONAL)
    assert str(refused.value) == ("Give resume=RUN and out=FOLDER. Optional: dtype=, trusted=.")


@pytest.mark.parametrize("word", ["float", "Float32", "float32,bfloat16", "f"])
def test_a_value_is_one_of_its_words(word):
    with pytest.raises(InputError) as refused:
        key_values(["resume=a", "out=b", f"dtype={word}"], REQUIRED, OPTIONAL)
    assert str(refused.value) == f"dtype={word} is not one of float32, bfloat16."


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("", []),
        ("[]", []),
        ("a", ["a"]),
        ("[a,b.c]", ["a", "b.c"]),
        ("[a, b,]", ["a", "b"]),
        ("a,b", ["a", "b"]),
    ],
)
def test_a_list_is_its_names(value, names):
    assert listed(value) == names
