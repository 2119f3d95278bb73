import subprocess
import sys

import pytest

from rl4p.reward.equivalence import LONGEST, equal, grade

# A reference and a response's answer.
EQUAL = [
    *[("1/2", r"\frac{1}{2}"), ("0.5", r"\frac12"), (r"\dfrac34", "0.75"), (".5", "0.5")],
    *[("3 1/2", "3.5"), ("3.5", r"3\frac{1}{2}"), (r"-\frac{1}{2}", r"\frac{-1}{2}")],
    *[("1/3", "0.333333333"), ("1.5 \\times 10^3", "1500"), ("6", "2\u00d73"), ("0", "-0")],
    *[("50\\%", "0.5"), ("50%", "0.5"), ("50", "50\\%"), ("0.1", "10\\%"), ("50\\%", r"\frac12")],
    *[("5", r"5\text{ cm}"), ("5 cm", "5"), ("5", r"5\ \text{cm}^2"), ("12 apples", "12")],
    *[(r"\$5", "5"), ("5", r"\$5.00"), ("90^\\circ", "90"), (r"\text{5 ft}", "5")],
    *[("1000", "1,000"), ("1000", "1{,}000"), ("1000", r"1\,000"), ("12345", "12 345")],
    *[(r"\{1,2\}", r"\{2,1\}"), ("1,2,3", "3, 2, 1"), (r"\left(1,2\right)", "(1, 2)")],
    *[(r"\{1, \frac{1}{2}\}", r"\{0.5, 1\}"), ("(1/3, 2)", "(0.333333333, 2)")],
    *[(r"\{1,2\}", r"\{1,2,2\}"), ("(a, 2)", "(a, 2.0)")],
    *[(r"\sqrt{8}", r"2\sqrt{2}"), ("x^2+2x+1", "(x+1)^2"), ("2x", "2*x"), ("8", "2**3")],
    *[("x=5", "5"), ("5", "x = 5."), ("\u22123", "-3"), (r"2\pi", "2π"), (r"\infty", "∞")],
    *[("$5$", "5"), (r"\frac12", r"\(0.5\)"), ("10", r"\boxed{10}"), ("7", "7.")],
    *[("Tuesday", r"\text{tuesday}"), ("even", r"\mathrm{even}"), (r"\text{(A)}", "A")],
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
]
# Numbers of every size, in every notation (`tests/data/test_quantity.py` has more).
EQUAL += [
    *[(r"\frac{1}{1024}", "0.0009765625"), (r"2\times 10^{-8}", "0.00000002")],
    *[("10^{99}", "10^{99}")],
    *[(r"\frac{7}{3}", "2.333333"), ("0.333333", r"\frac13"), ("1/6", "0.1666666666")],
    *[(r"\pi", "3.14159265")],
    *[(r"\frac{1}{13983816}", r"7.15112\times 10^{-8}"), (r"\sqrt2", "1.414214")],
    *[("1/2004!", "1/2004!")],
    *[(r"\frac{1}{2^{60}}", "2^{-60}"), (r"\frac{20!}{21!}", r"\frac{1}{21}")],
    *[("e^{-50}", r"\frac{1}{e^{50}}")],
    *[(r"10^{-100}+10^{-101}", r"11\cdot 10^{-101}"), (r"\sqrt{10^{-40}}", "10^{-20}")],
    *[("0", r"\sqrt2\sqrt3-\sqrt6")],
    *[("0.00001\\%", "0.0000001"), ("1/3", "33.3333\\%"), ("(10,000, 5)", "(10000,5)")],
    *[("-0.0", "+0")],
    *[(r"10,\!000", "10000"), (r"(10,\!000, 5)", "(10000,5)"), ("1\u2009234", "1234")],
    *[("\uff11\uff12", "12")],
    *[(r"0.\overline{3}", r"\frac{1}{3}"), ("1/7", r"0.\overline{142857}"), ("1", "0.(9)")],
    *[("x=1/3", r"x = 0.(3)")],
    *[("101_2", "5"), ("1F_{16}", "0x1F"), ("3 1/2", "3\u00bd"), ("3 4/4", "3 4/4")],
    *[("7/2", r"3\frac12"), ("x+3 1/2", r"x+\frac72")],
    *[("1.5e3", "1500")],
    *[(r"\{10^{-9}, 1\}", r"\{1, 10^{-9}\}"), (r"(10^{-9}, 1]", r"(0.000000001, 1]")],
    *[("-\\infty", "-\u221e")],
    (r"\begin{pmatrix}10^{-9}\\2\end{pmatrix}", r"\begin{pmatrix}\frac{1}{10^9}\\2\end{pmatrix}"),
]  # fmt: skip
# Times of day are compared by hours and minutes, other ratios by their value.
EQUAL += [
    *[("12:30", "12:30"), ("03:45", "3:45"), ("3:45:10", r"\text{3:45:10}"), ("$12:00$", "12:00")],
    *[
        ("3:4", "15:20"),
        ("5:12", "25:60"),
        (r"\frac{1}{0}", r"\frac{1}{0}"),
        (r"+\infty", r"\infty"),
    ],
]
DIFFERENT = [
    *[("5", "6"), ("3", "-3"), ("12", "21"), ("1.5", "1.4"), ("1,234", "1.234"), ("5", "")],
    ("123456.5", "12345649%"),  # whole numbers are exact
    *[("10000001", "10000002"), ("3.1415926", "3.1415927"), ("1/3", "0.33"), ("3.14", r"\pi")],
    *[("(1,2)", "(2,1)"), ("[1,2)", "(1,2)"), (r"\{1,2\}", r"\{1,3\}"), ("2", "2,3")],
    *[("(1,2)", "(1,-2)"), ("(1,2)", "(1,2,3)"), (r"(1/3, 2)", "(0.33, 2)"), ("(1,2)", "(a,2)")],
    *[("tea", "eat"), ("Tuesday", "Friday"), ("even", "neve"), ("x", "y"), ("x+1", "x-1")],
    *[(r"5\%", "0.5"), ("50%", "5"), (r"\sqrt2", "2"), ("1/2", "2/1"), ("x^2", "x^3")],
    *[("5", "five cats"), ("2", r"\text{2 or 3}"), ("100", "10"), ("12.5", "12,5")],
    *[("(", ")"), ("", "5"), ("1", "1" + " " * LONGEST)],
]
DIFFERENT += [
    *[(r"\frac{1}{13983816}", given) for given in ("0", "0.00", "0.0000004", "1/13983817")],
    *[(r"\frac{1}{2^{60}}", r"\frac{1}{2^{61}}"), (r"\frac{1}{2004!}", r"\frac{1}{2006!}")],
    *[("1/20!", "0.0")],
    *[(r"1.6\times 10^{-19}", r"9.1\times 10^{-31}"), ("1e-24", "1e-23"), ("e^{-50}", "e^{-51}")],
    *[("e^{-50}", "0")],
    *[("10^{-99}", "10^{-98}"), (r"0.00001\%", r"0.00002\%"), ("10^{-9}x", "10^{-8}x")],
    *[("x=10^{-9}", "x=10^{-8}")],
    *[(r"\sqrt{10^{40}+1}", "10^{20}"), ("1000001/2", "500000.0"), ("4/2", "1.9999999")],
    *[("7/3", "2.333334")],
    *[("1/3", "0.33333"), ("1/3", "333333/1000000"), (r"\pi", r"\frac{22}{7}")],
    *[(r"\sqrt{2}", "1.41422")],
    *[(r"(\frac{1}{3000000}, 1)", "(0.0000004,1)"), (r"\{10^{-9}, 1\}", r"\{10^{-8}, 1\}")],
    *[("(0,10^{-9}]", "(0,10^{-8}]")],
    *[("(e^{-1000}, 1)", "(e^{-1001}, 1)"), ("[e^{-50}, 1]", "[e^{-51}, 1]")],
    *[(r"\{e^{-50}, 1\}", r"\{e^{-51}, 1\}")],
    *[("e^{-50}, a", "e^{-51}, a")],
    *[(r"10,\!000", "10, 0"), (r"1,\!200", "1, 200"), (r"0.\overline{12}", r"0.\overline{21}")],
    *[("1/3", "0.3")],
    *[("101_2", "101"), ("101_2", "101_3"), ("4", "3 4/4"), ("3", "3 4/4")],
    *[("4", r"3\frac{4}{4}"), ("17/4", r"3\frac54")],
    *[(r"\infty", r"-\infty"), ("0", r"\infty")],
    (r"\begin{pmatrix}10^{-9}\\2\end{pmatrix}", r"\begin{pmatrix} 10^{-8} \\ 2 \end{pmatrix}"),
    (r"\begin{pmatrix}e^{-50}\\2\end{pmatrix}", r"\begin{pmatrix} e^{-51} \\ 2 \end{pmatrix}"),
]  # fmt: skip


# An expression that divides by zero equals no other; times of day are not compared as ratios.
DIFFERENT += [
    *[("12:00", "1:00"), ("$12:00$", "$1:00$"), ("12:30", "4:10"), ("3:45", "3:54")],
    *[("3:45", "3:45:10"), ("10:00", "10"), ("0:30", "00:03")],
    *[
        ("1/0", "2/0"),
        (r"\frac{1}{0}", r"\frac{3}{0}"),
        (r"\frac{1}{0}", r"\infty"),
        ("5:0", "7:0"),
    ],
    *[(r"\frac{x}{0}", r"\frac{y}{0}"), (r"x=\frac{1}{0}", r"x=\frac{2}{0}"), ("0/0", "1/0")],
    *[("(1/0, 2)", "(3/0, 2)"), (r"\{\frac{1}{0},2\}", r"\{2,\frac{3}{0}\}")],
    *[(r"\tan(\frac{\pi}{2})", r"\frac{1}{0}"), (r"\infty-\infty", r"0\cdot\infty")],
    (r"\begin{pmatrix}\frac10\\2\end{pmatrix}", r"\begin{pmatrix}\frac20\\2\end{pmatrix}"),
]


@pytest.mark.parametrize(("reference", "given"), EQUAL)
def test_equal_answers(reference, given):
    assert equal(reference, given)


@pytest.mark.parametrize(("reference", "given"), DIFFERENT)
def test_different_answers(reference, given):
    assert not equal(reference, given)


def rewritten(first, second):
    """Yields the two answers scaled, in lists, within brackets of other sizes, with spaces."""
    for scale in ("10^{-30}", "10^{12}", "7", r"\frac{1}{13983816}"):
        yield tuple(rf"({each}) \cdot {scale}" for each in (first, second))
    yield second, first
    yield rf"\{{{first}, 5\}}", rf"\{{5, {second}\}}"
    yield f"({first}, 5)", rf"\left({second}, 5\right)"
    yield rf"\left[0, {first}\right)", f"[ 0 ,{second} )"
    yield f" ${first}$", rf"\( {second} \)."


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        *[("1/2", r"\frac{1}{2}", True), ("2/3", r"0.\overline{6}", True), ("2/3", "3/4", False)],
        *[(r"\sqrt{8}", r"2\sqrt{2}", True), (r"\sqrt{8}", r"2\sqrt{3}", False)],
        *[("3", "3.0", True), ("3", "3.0001", False), ("10001/3", "10002/3", False)],
    ],
)
def test_a_comparison_does_not_depend_on_size_order_and_marks(first, second, same):
    wrong = [pair for pair in rewritten(first, second) if equal(*pair) is not same]
    assert wrong == []


def test_a_reference_that_is_no_mathematics_equals_itself():
    assert equal("((x", " ((x ")
    assert equal("R&D", "R&D")
    assert not equal("R&D", "R&B")


def test_a_response_without_an_answer_is_wrong():
    assert grade({"reference": "0.5", "answer": r"\frac{1}{2}"}) is True
    assert grade({"reference": "0.5", "answer": ""}) is False


def test_a_worker_that_compares_imports_nothing_heavy():
    modules = subprocess.run(
        [sys.executable, "-c", "import sys, rl4p.reward.equivalence; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "math_verify" in modules
    assert not {"jax", "numpy", "flax", "omegaconf", "transformers"} & set(modules)
