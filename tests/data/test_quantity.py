"""Tests of the reading of numbers; the tables are the decisions, for and against."""

from fractions import Fraction

import pytest

from rl4p.data.quantity import last_quantity, plain_notation, quantity

# A text, and its plain form.
PAIRS = [
    # Separators of thousands.
    *[(r"10,\!000", "10000"), (r"11,\! 111,\! 100", "11111100"), (r"1{,}234{,}567", "1234567")],
    *[(r"10\,000", "10000"), (r"10\ 000", "10000"), ("10~000", "10000"), (r"10{\,}000", "10000")],
    *[(f"1{space}234{space}567", "1234567") for space in "\u00a0\u2007\u2009\u202f\u3000\u205f"],
    *[("1,234", "1,234"), ("10, 000", "10, 000"), (r"1,\!20", "1,20"), (r"\!x\!", "x")],
    *[("12\u20093", "12 3"), (r"1\,2345", r"1\,2345"), (r"1.234\,567", r"1.234\,567")],
    # Characters.
    *[("\uff11\uff12", "12"), ("\u0661\u0662", "12"), ("\U0001d7cf\U0001d7d0", "12")],
    *[("\u22123", "-3"), ("\u20103", "-3"), ("\uff0d3", "-3"), ("1\u2044 2", "1/ 2")],
    *[("\u00bd", " 1/2"), ("3\u00bd", "3 1/2"), ("x\u00b2", "x^2"), ("2\u00b9\u2070", "2^{10}")],
    *[("10\u207b\u00b2", "0.01"), ("1\u200b2", "12"), ("5\uff05", "5%"), ("x\u2081", "x_1")],
    # Repeating decimals.
    *[(r"0.\overline{3}", r"\frac{1}{3}"), (r"0.\overline3", r"\frac{1}{3}")],
    *[(r"0.\bar{3}", r"\frac{1}{3}"), (r"0.\dot{3}", r"\frac{1}{3}"), ("0.(3)", r"\frac{1}{3}")],
    *[("0.3\u0305", r"\frac{1}{3}"), ("0.3\u0307", r"\frac{1}{3}"), ("0.333...", r"\frac{1}{3}")],
    *[(r"0.1\overline{6}", r"\frac{1}{6}"), ("0.1(6)", r"\frac{1}{6}")],
    *[(r"0.{\overline{3}}", r"\frac{1}{3}")],
    *[(r"0.\dot{1}4285\dot{7}", r"\frac{1}{7}"), (r"0.\overline{142857}", r"\frac{1}{7}")],
    *[("0.1\u030542857\u0305", r"0.\overline{1}4285\overline{7}")],
    *[(r"0.1212\ldots", r"\frac{4}{33}")],
    *[(r".\overline{3}", r"\frac{1}{3}"), (r"-12.\overline{9}", "-13")],
    *[("1,234.(5)", r"\frac{11111}{9}")],
    *[("0.33...", "0.33..."), ("3.14159...", "3.14159..."), (r"\overline{AB}", r"\overline{AB}")],
    # Bases.
    *[("101_2", "5"), ("101_{2}", "5"), ("(101)_2", "5"), ("1F_{16}", "31"), ("FF_{16}", "255")],
    *[(r"101_{\text{two}}", "5"), ("101_{two}", "5"), ("101\u2082", "5"), ("0x1F", "31")],
    *[("0b101", "5"), ("10.1_2", r"\frac{5}{2}"), ("12_{10}", "12"), ("\u2212101_2", "-5")],
    *[("102_2", "102_2"), ("a_2", "a_2"), ("F_{16}", "F_{16}"), (r"\log_2 8", r"\log_2 8")],
    *[("x1_2", "x1_2"), ("1_000", "1_000"), ("CO_2", "CO_2"), ("3_{1}", "3_{1}"), ("C_5", "C_5")],
    # Scientific notation.
    *[("1e5", "100000"), ("1.5E-3", "0.0015"), (r"2\times 10^{-3}", "0.002"), ("3*10^5", "300000")],
    *[(r"2\cdot10^3", "2000"), ("2\u00d710\u207b\u00b3", "0.002"), ("10^{5}", "100000")],
    *[("10^-2", "0.01"), ("-10^{2}", "-100"), ("1e-5", "0.00001"), ("2.0e+3", "2000")],
    *[("2e-1", "2e-1"), ("2e", "2e"), ("e5", "e5"), ("2e3x", "2e3x")],
    *[(r"5^2\times 10^3", r"5^2\times 10^3")],
    *[("10^5!", "10^5!"), ("10^{99}", "10^{99}"), ("10^{2^3}", "10^{2^3}")],
    *[("1/2*10^3", "1/2*10^3")],
    # Sizes.
    *[(r"\left(1,2\right]", "(1,2]"), (r"\left\{1\right\}", r"\{1\}")],
    *[(r"\leftarrow", r"\leftarrow")],
]  # fmt: skip


@pytest.mark.parametrize(("text", "plain"), PAIRS)
def test_numbers_have_one_notation(text, plain):
    assert plain_notation(text) == plain


@pytest.mark.parametrize("plain", sorted({plain for _, plain in PAIRS}))
def test_the_plain_form_stays(plain):
    assert plain_notation(plain) == plain_notation(plain_notation(plain))


MINUS, EN_DASH, NO_BREAK, SQUARED = "\u2212", "\u2013", "\u00a0", "\u00b2"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", "12"),
        (" 12. ", "12"),
        ("007", "7"),
        ("1,234,567", "1234567"),
        ("1,234.50", "1234.5"),
        (r"1{,}234", "1234"),
        (r"1\,234", "1234"),
        (r"10{,}000{,}000", "10000000"),
        ("18.00", "18"),
        (".5", "1/2"),
        ("$18", "18"),
        ("$ 18", "18"),
        (r"\$18", "18"),
        ("$1,234.50", "1234.5"),
        ("\u20ac18", "18"),
        ("18 \u20ac", "18"),
        ("18$", "18"),
        ("50\u00a2", "50"),
        ("18 dollars", "18"),
        ("-3", "-3"),
        ("+3", "3"),
        ("-$3", "-3"),
        ("$-3", "-3"),
        (f"{MINUS}3", "-3"),
        (f"{EN_DASH}3", "-3"),
        (f"12{NO_BREAK}km", "12"),
        ("12%", "12"),
        (r"12\%", "12"),
        ("12 %.", "12"),
        ("12 percent", "12"),
        ("3/4", "3/4"),
        ("-3/4", "-3/4"),
        ("6/8", "3/4"),
        ("36/2", "18"),
        ("3/4 cup", "3/4"),
        ("1,000/3", "1000/3"),
        ("1 3/4", "7/4"),
        ("-1 3/4 hours", "-7/4"),
        (r"\frac{3}{4}", "3/4"),
        (r"-\dfrac{3}{4}", "-3/4"),
        (r"\frac{-3}{4}", "-3/4"),
        (r"\tfrac34", "3/4"),
        (r"1\frac{3}{4}", "7/4"),
        ("3 hundred", "300"),
        ("$1.5 million", "1500000"),
        ("2 million people", "2000000"),
        ("1/2 million", "500000"),
        ("5 apples", "5"),
        ("5 apples.", "5"),
        ("2 dozen", "2"),
        ("30kg", "30"),
        ("5apples", "5"),
        ("12th", "12"),
        ("12 km/h", "12"),
        ("$5 per hour", "5"),
        ("$5/hour", "5"),
        ("$12 a week", "12"),
        ("20 more cups of black coffee", "20"),
        ("25 cm^2", "25"),
        ("25 m^{2}", "25"),
        (f"25 km{SQUARED}", "25"),
        (r"90^\circ", "90"),
        (r"90^{\circ}", "90"),
        ("90 degrees", "90"),
        (r"12\text{ apples}", "12"),
        (r"12~\mathrm{cm}", "12"),
        ("4 times", "4"),
        ("5 more than Tim", "5"),
        ("x = 12", "12"),
        ("total cost=$12", "12"),
        ("= 12", "12"),
        ("Answer: 12", "12"),
        ("The final answer is $12.", "12"),
        ("$12$", "12"),
        (r"$\$12$", "12"),
        (r"\(12\)", "12"),
        (r"\[ 12 \]", "12"),
        (r"\boxed{12}", "12"),
        (r"$\boxed{12}$.", "12"),
        ("**12**", "12"),
        ("**12** apples", "12"),
        ("**$12.**", "12"),
        ("`12`", "12"),
        ("9" * 64, "9" * 64),
        ("1 234 567.5 km", "1234567.5"),
        ("\u00bd cup", "1/2"),
        (r"\frac1{20}", "1/20"),
        (r"\frac 12", "1/2"),
        (r"\boxed {12}", "12"),
        *[("1.2e5", "120000"), (r"-1.2 \times 10^{-3} m", "-12/10000"), ("0x10", "16")],
        *[(r"$0.\overline{3}", "1/3"), ("-0.(3) m", "-1/3"), ("10^5", "100000"), ("12_{7}", "9")],
    ],
)
def test_quantities_as_people_write_them(text, value):
    assert quantity(text) == Fraction(value)


NONE = [
    *("", "-", ".", "$", "%", "one", "nan", "inf", "Paris"),
    *("1,2", "12,34", "1,2345", ",123", "1,234,5", "1.234,50", "1 2", "12 34", "1.2.3", "12,"),
    *("--1", "- 1", "-$-1", "1-", "1e", "2e-1", r"1.2 \times 5", "0x", "1_000"),
    *("12 or 15", "12 and 15", "12-15", f"12{EN_DASH}15", "10 to 12", "12, 15", "12 15", "3:30"),
    *("12 or so", "12 or fifteen", "12 plus tax", "12 minus three", "12 and a half", "12 thirds"),
    *("12 half", "12 or more", "12 twenty", "12 apples and one pear", "12 not", "not 12", "12 is"),
    *("about 12", "12 at least", "~12", "\u224812", "step 12", "Step 3: 12"),
    *("12 below zero", "negative 12"),
    *("3*4", "3 x 4", "3+4", "7-3", "2^5", "2**5", "5!", "3*4 = 12", "12 = 12", "(12)", "12?"),
    *("12k", "12 k", "12K", "12M", "12 M", "12b", "12x", "12 x", "12ab", "12i", "12 pi", "12e"),
    *(r"12\pi", r"\sqrt{12}", r"12\cdot 2", "12 squared", "12 a", "12 mod five"),
    *(
        "1/0",
        "1/2/3",
        "12/25/2020",
        "1 5/4",
        "3 4/4",
        r"3\frac{4}{4}",
        "1/-2",
        "1.5/2",
        "3/4/5",
        "2 1/2 1/2",
        r"\frac{1}{0}",
    ),
    *("5 apples2", "5 cm2", r"\frac312", r"1\frac312", "12kg3", "12 apples3"),
    *("12 apples 3", "12 apples, of which some", "**2**3**", "**2** 3 **4**", "12\n13"),
    *("12 a b c d e f g h", "12 of a very long list of words here", "9" * 65, "1" + ",000" * 70),
]


@pytest.mark.parametrize("text", NONE)
def test_what_is_no_quantity(text):
    assert quantity(text) is None


@pytest.mark.parametrize("text", ["12 apples", "30kg", "$5 per hour", "90 degrees"])
def test_words_are_refused_without_units(text):
    assert quantity(text) is not None
    assert quantity(text, units=False) is None
    assert quantity("12", units=False) == 12
    assert quantity("$12%", units=False) == 12


@pytest.mark.parametrize(
    ("text", "last", "value"),
    [
        ("She makes 12 apples.", "12", "12"),
        ("The answer is $1,234.50.", "$1,234.50", "1234.5"),
        ("The answer is **18**.", "18", "18"),
        ("Answer:12", "12", "12"),
        ("2+2=4", "4", "4"),
        ("5 x 3 = 15 dollars", "15", "15"),
        ("it was -12 or (-13)", "-13", "-13"),
        ("it is $-5", "$-5", "-5"),
        ("it is -.5", "-.5", "-1/2"),
        ("12 or 15", "15", "15"),
        ("a 3/4 cup", "3/4", "3/4"),
        ("1 3/4", "1 3/4", "7/4"),
        (r"so \frac{3}{4}", "3/4", "3/4"),
        (r"so \boxed{1{,}234}", "1234", "1234"),
        ("so 12 345", "12 345", "12345"),
        ("it is 1.6e-19 C", "0.00000000000000000016", "16e-20"),
        (r"it is 1.6\times 10^{-3}.", "0.0016", "16e-4"),
        (r"it is 0.\overline{3}", "1/3", "1/3"),
        ("3 million", "3 million", "3000000"),
        ("25 m^2 of CO2", "25", "25"),
        ("50% of them", "50%", "50"),
        ("12 and no more", "12", "12"),
        ("12 and a half", "12 and a half", None),
        ("5 - 3", "5 - 3", None),
        ("3 x 4", "3 x 4", None),
        ("3**4", "3**4", None),
        ("10^5", "100000", "100000"),
        ("11^5", "11^5", None),
        ("10-12", "10-12", None),
        ("1,2", "1,2", None),
        ("at 3:30", "3:30", None),
        ("5!", "5!", None),
        ("12k", "12k", None),
        ("x15", None, None),
        ("x*4", None, None),
        ("none", None, None),
        ("", None, None),
    ],
)
def test_the_last_number_of_a_text(text, last, value):
    assert last_quantity(text) == last
    assert quantity(last or "") == (None if value is None else Fraction(value))


@pytest.mark.parametrize("bomb", ["9**9**9", "9" * 240_000, "1+" * 120_000, "1,000" * 48_000])
def test_long_texts_are_no_quantities(bomb):
    assert quantity(bomb) is None
    assert quantity(last_quantity(bomb + "1") or "") is None
