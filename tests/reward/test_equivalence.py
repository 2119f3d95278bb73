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
DIFFERENT = [
    *[("5", "6"), ("3", "-3"), ("12", "21"), ("1.5", "1.4"), ("1,234", "1.234"), ("5", "")],
    *[("10000001", "10000002"), ("3.1415926", "3.1415927"), ("1/3", "0.33"), ("3.14", r"\pi")],
    *[("(1,2)", "(2,1)"), ("[1,2)", "(1,2)"), (r"\{1,2\}", r"\{1,3\}"), ("2", "2,3")],
    *[("(1,2)", "(1,-2)"), ("(1,2)", "(1,2,3)"), (r"(1/3, 2)", "(0.33, 2)"), ("(1,2)", "(a,2)")],
    *[("tea", "eat"), ("Tuesday", "Friday"), ("even", "neve"), ("x", "y"), ("x+1", "x-1")],
    *[(r"5\%", "0.5"), ("50%", "5"), (r"\sqrt2", "2"), ("1/2", "2/1"), ("x^2", "x^3")],
    *[("5", "five cats"), ("2", r"\text{2 or 3}"), ("100", "10"), ("12.5", "12,5")],
    *[("(", ")"), ("", "5"), ("1", "1" + " " * LONGEST)],
]


@pytest.mark.parametrize(("reference", "given"), EQUAL)
def test_equal_answers(reference, given):
    assert equal(reference, given)


@pytest.mark.parametrize(("reference", "given"), DIFFERENT)
def test_different_answers(reference, given):
    assert not equal(reference, given)


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
