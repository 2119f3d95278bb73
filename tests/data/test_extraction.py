from typing import get_args

import pytest

from rl4p.data.extraction import Extraction, extract


@pytest.mark.parametrize(
    ("text", "how", "answer"),
    [
        ("2+2=4 #### 4", "hashes", "4"),
        (r"so \boxed{4}.", "hashes", None),
        (r"so \boxed{4}.", "boxed", "4"),
        (r"\boxed{3} no, \boxed{ \frac{3}{4} }", "boxed", r"\frac{3}{4}"),
        ("<answer> 4 </answer>", "answer", "4"),
        ("<answer>3</answer> no, <answer>4</answer>", "answer", "4"),
        ("<answer><answer>4</answer></answer>", "answer", "4"),
        ("<answer>3</answer> no, <answer>4", "answer", None),
        ("4</answer>", "answer", None),
        ("it is 4.", "number", "4"),
        ("it is four", "number", None),
        (r"#### 3 and \boxed{4}", ("boxed", "hashes"), "4"),
        (r"#### 3 and \boxed{4}", ("hashes", "boxed"), r"3 and \boxed{4}"),
        ("#### 3", ("boxed", "hashes"), "3"),
        ("it is 3", ("boxed", "hashes"), None),
        (r"\boxed{}", ("boxed", "number"), ""),
        ("1 + 1\n#### 2\nthanks", "hashes", "2"),
        ("2", "hashes", None),
        ("<answer>2", "answer", None),
        ("from 3 to -1,234.50 dollars.", "number", "-1,234.50"),
        ("3 or .5", "number", ".5"),
    ],
)
def test_the_answer_stands_where_it_is_said_to(text, how, answer):
    assert extract(text, how) == answer


@pytest.mark.parametrize("how", get_args(Extraction))
@pytest.mark.parametrize(
    "piece",
    [
        *("#", "####", "\\boxed{", "{", "\\boxed{}", "<answer>", "</answer>", "1,", "-1", "1+"),
        *("\\frac{", "answer is ", "answer is 1", "**1", "#### 1\n", "(", "not 1 ", "= "),
    ],
)
def test_a_long_text_is_read_in_linear_time(piece, how):
    """A quadratic rule would take minutes on each."""
    assert len(extract(piece * (240_000 // len(piece)), how) or "") < 240_001
