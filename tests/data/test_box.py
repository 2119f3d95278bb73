import pytest

from rl4p.data.box import boxed
from rl4p.data.extraction import extract, same_answer


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"so \boxed{1} and \boxed{2}.", "2"),
        (r"\boxed{\frac{1}{\sqrt{2}}} ends", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \mid x > 0 \right.}", r"\left\{ x \mid x > 0 \right."),
        (r"\boxed{a\\}b", r"a\\"),
        (r"\fbox{3}", "3"),
        (r"\boxed{}", ""),
        (r"\boxed{1} \boxed{2", None),
        ("5", None),
        (r"boxed{4}", None),
        (r"\boxedx{4}", None),
        # The argument is the next token or group.
        (r"$\boxed 7$", "7"),
        (r"\boxed {42} apples", "42"),
        ("\\boxed\n {42}", "42"),
        ("\\boxed % the answer\n{42}", "42"),
        (r"\boxed7", "7"),
        (r"\boxed 12", "1"),
        (r"\boxed\frac12", r"\frac12"),
        (r"\boxed \frac{1}{2}$", r"\frac{1}{2}"),
        (r"\boxed\dfrac 1{20}.", r"\dfrac 1{20}"),
        (r"\boxed\sqrt2 ", r"\sqrt2"),
        (r"\boxed\sqrt[3]{2}", r"\sqrt[3]{2}"),
        (r"\boxed\frac\pi2", r"\frac\pi2"),
        (r"\boxed\pi", r"\pi"),
        (r"\boxed\mathbb{R}", r"\mathbb{R}"),
        (r"\boxed\text{yes}", r"\text{yes}"),
        (r"\fbox 3", "3"),
        # Without an argument there is no answer, whatever stands before.
        (r"\boxed{5}, no: \boxed", None),
        (r"\boxed{5}, no: $\boxed$", None),
        (r"{\boxed{5}, no: \boxed}", None),
        ("\\boxed{5}, no: \\boxed\n\n7", None),
        (r"\boxed{5}, no: \boxed\frac{1}", None),
        (r"\boxed{5}, no: \boxed\frac{1}{2", None),
        # A box in a box belongs to it.
        (r"\boxed{\boxed{3}}", "3"),
        (r"\boxed{\fbox{\boxed{3}}}", "3"),
        (r"\boxed{x = \boxed{3}}", "x =  3"),
        (r"\boxed{x = \boxed 3}", "x =  3"),
        (r"\boxed{1, \boxed{2}}", "1,  2"),
        (r"\boxed{1, \boxed{2}", None),
        ("\\boxed{1, that is\n\nthe sum. So \\boxed{2}", "2"),
        (r"{\text{so} \boxed{2}", "2"),
        # Comments.
        ("\\boxed{7 % or 8\n}", "7"),
        ("\\boxed{% \\boxed{8}\n7}", "7"),
        (r"\boxed{50%}", "50%"),
        ("\\boxed{50%}\n", "50%"),
        ("\\boxed{50% of them}\n", "50% of them"),
        (r"\boxed{50\%}", r"50\%"),
        ("\\boxed{7}\n% \\boxed{8}\n", "7"),
        ("\\boxed{7}\n 50 % or \\boxed{8}\n", "8"),
    ],
)
def test_the_last_box_is_read_as_tex_reads_it(text, content):
    assert boxed(text) == content


@pytest.mark.parametrize("text", [r"\boxed{5} #### 6 \boxed", r"#### 5 \boxed{6"])
@pytest.mark.parametrize("how", ["boxed", "stated", ("boxed", "hashes"), ("boxed", "number")])
def test_a_malformed_last_box_is_never_replaced(text, how):
    if how == "stated":
        text = text.replace("#", "")  # where the marker comes first
    assert extract(text, how) is None


def test_a_marker_and_a_box_with_different_numbers():
    """`stated` takes the marker, and the box only where the marker has no number."""
    for text, answer in ((r"#### 12 \boxed{13}", "12"), (r"\boxed{13} #### 12", "12")):
        assert same_answer(extract(text, "hashes"), answer) is (text[0] == "\\")
        assert same_answer(extract(text, "boxed"), "13")
    assert same_answer(extract("\\boxed{13}\n#### 12", "stated"), "12")
    assert same_answer(extract("#### 12\n\\boxed{13}", "stated"), "12")
    assert same_answer(extract("#### so\n\\boxed{13}", "stated"), "13")
    assert same_answer(extract("#### 12\n\\boxed{13}", ("boxed", "hashes")), "13")


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "piece",
    [
        *(
            "\\boxed{",
            "\\boxed ",
            "\\boxed%",
            "\\boxed\n\n",
            "\\boxed{}",
            "\\boxed\\frac",
            "%",
            "{%",
        ),
        *("\\boxed{\n\n", "{", "}", "\\", "\\boxed\\frac{", "\\boxed{1}%\n", "\\boxed" + " " * 99),
    ],
)
def test_a_long_text_is_read_in_linear_time(piece):
    assert len(boxed("\\boxed{" + piece * (240_000 // len(piece)) + "}") or "") < 240_001
