"""Tests that the formulas of docstrings become MathML, and that nothing of a line is lost."""

import re
import xml.etree.ElementTree as ElementTree
from html import unescape

import pytest

from docs.generator.algorithms import TITLES
from docs.generator.docstrings import body, located
from docs.generator.formulas import formula, rendered
from docs.generator.options import groups

SPACE, PI = ["mspace", None], ["mi", unescape("&pi;")]


def parts(text):
    """Returns the elements of a formula without its annotation, as nested lists."""

    def nested(element):
        inner = [nested(each) for each in element]
        return [element.tag, *inner] if inner else [element.tag, element.text]

    return [nested(each) for each in ElementTree.fromstring(formula(text))[0][0]]


def shown(text):
    return "".join(ElementTree.fromstring(formula(text))[0][0].itertext())


@pytest.mark.parametrize(
    ("text", "fraction"),
    [
        ("A / B", [["mi", "A"], ["mi", "B"]]),
        ("pi / pi_old", [PI, ["msub", PI, ["mrow", ["mtext", "old"]]]]),
        ("(r - b) / 2", [["mrow", ["mi", "r"], SPACE, ["mo", unescape("&minus;")], SPACE,
                          ["mi", "b"]], ["mn", "2"]]),
        ("1 / log G", [["mn", "1"], ["mrow", ["mi", "log"], SPACE, ["mi", "G"]]]),
    ],
)  # fmt: skip
def test_a_fraction_has_two_terms_without_their_parentheses(text, fraction):
    assert parts(text) == [["mfrac", *fraction]]


def test_words_are_no_fraction_and_no_variables():
    assert not [each for each in parts("its mean / the mean of a token t") if each[0] == "mfrac"]
    assert ["mtext", "a"] in parts("a token t")
    assert ["mi", "t"] in parts("a token t")


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        ("sqrt(max(in, out)) U V^T", "max(in,out)UVT"),
        ("F(x) = 3 x y, the t-th", "F(x)=3&times;y,thet-th"),
        (
            "b[task] <- t^-decay_exponent +- <i>",
            "b[task]&larr;t&minus;decay_exponent&plusmn;&lt;i&gt;",
        ),
        ("delta_t = r_t + gamma V_{t+1}", "&delta;t=rt+&gamma;Vt+1"),
        ("log rho) / 2", "log&rho;)/2"),
    ],
)
def test_every_sign_is_drawn(text, drawn):
    assert shown(text) == unescape(drawn)


def test_every_formula_of_the_index_is_rendered_and_whole():
    lines = []
    for group in TITLES:
        for option in groups()[group]:
            cls = located(option.target or "")
            text = body(cls)
            assert not re.search(r"^ {4}\S", text, re.MULTILINE), option
            for each in re.findall(r"<math>.*?</math>", text):
                root = ElementTree.fromstring(each)
                source = root.find("semantics/annotation").text
                lines.append(source)
                assert source in " ".join(re.sub(r" +(?==)", " ", cls.__doc__).split("\n")), option
    assert len(lines) > 50


def test_text_around_a_formula_stays():
    text = rendered("before\n\n    A = B\n    C = D\n\nafter\n")
    assert re.sub(r"<math>.*?</math>", "M", text) == (
        'before\n\n<div class="formulas">MM</div>\n\nafter\n'
    )
