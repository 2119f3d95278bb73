r"""Quantities: numbers as people write them in answers, with units, fractions and LaTeX.

A grader that takes a wrong answer for a right one teaches it, while a right answer that is missed
only costs a sample. So a text is a quantity only if all of it is understood. The rules:

    1,234.50  1{,}234  1\,234     thousands separators, in the right places only: `1,2` is nothing
    10,\!000  1 234               (`notation.py` lists spaces, and the digits of other scripts)
    0.\overline{3}  101_2  2e-8   repeating decimals, other bases, and powers of ten
    18.00  .5  18.                decimals are exact: 18.00 is 18, and 17.99 or 0.333 is not rounded
    $18  \$18  €18  18 dollars    a currency is dropped, and no currency is converted
    -3  +3  -$3                   one sign, directly before the number, as ASCII or Unicode
    12%  12 percent  12\%         a percent sign is a unit: 12% is 12, and not 0.12
    3/4  \frac{3}{4}  1 3/4       fractions are exact and need not be reduced: 6/8 is 0.75
    1.5 million  3 hundred        a scale directly after the number multiplies it
    5 apples  12 km/h  30kg       up to six words of a unit, in which no number may be hidden; units
    25 cm^2  90^\circ             are not converted or compared: 2 dozen is 2, and 50 cents is 50
    x = 12  The answer is 12      one name, or the word answer, may stand before it
    $12$  \(12\)  **12**          marks of mathematics and bold type around it are dropped

Other texts are no quantities: several numbers (``12 or 15``, ``12-15``, ``3:30``), sums
and other expressions (``3*4``, ``2^5``, ``5!``), words that change the value (``12 and a
half``, ``not 12``, ``about 12``, ``12 below``), letters that may be a factor or a variable
(``12k``, ``12M``, ``12x``, ``12 pi``), and texts over 200 characters.

Nothing is evaluated, and every pattern reads a text of bounded length.
"""

import re
from fractions import Fraction

from rl4p.data.box import boxed
from rl4p.data.notation import WHOLE, plain_notation

LONGEST = 200  # characters of a quantity
WINDOW = 150  # characters before the last digit of a text, among which the last number starts

CURRENCY = "[$€£¥₹]"
SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
SCALE = "|".join(SCALES)
WORD = r"[^\W\d_]+(?:[-'\u2019][^\W\d_]+)*"
QUANTITY = re.compile(
    rf"""(?P<sign>[+-]?)(?:{CURRENCY}\ ?)?(?P<inner_sign>[+-]?)
    (?:(?:(?P<mixed>{WHOLE})\ +)?(?P<numerator>{WHOLE})\ ?/\ ?(?P<denominator>{WHOLE})
      |(?P<number>(?:[0-9]{{1,3}}(?:\ [0-9]{{3}})+|{WHOLE})(?:\.[0-9]{{1,64}})?|\.[0-9]{{1,64}}))
    (?:\ +(?P<scale>{SCALE}))?
    (?:\ ?(?:%|°|{CURRENCY}|¢))?
    (?P<unit>(?:(?:\ *|\ ?/\ ?){WORD}(?:\^[23]|[²³])?)
             (?:(?:\ +|\ ?/\ ?){WORD}(?:\^[23]|[²³])?){{0,5}})?""",
    re.VERBOSE,
)
BEFORE = re.compile(
    r"(?:the )?(?:final )?answer(?: is)?(?:\s*[:=]\s*|\s+)|[a-z][a-z_ ]{0,40}=\s*|=\s*",
    re.IGNORECASE,
)


def words_of(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Units of one or two letters that may follow a number without a space; all longer words may.
ATTACHED = words_of(
    "m g s h l L C F cm mm km kg mg ml mL lb oz ft in mi hr th st nd rd am pm AM PM"
)
ALONE = words_of("m g s h l L C F V W a")  # words of one letter
# Words that may change the value of the number, or take it back.
CHANGES = words_of("""
    and or nor to not no minus plus over but if versus vs mod squared cubed factorial is are was
    equals equal wrong incorrect maybe instead about approximately roughly almost least most
    below negative half halves third quarter twice double triple pi sqrt sin cos tan log ln bn
    mn thirds fourths fifths sixths sevenths eighths ninths tenths hundredths thousandths zero
    one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety
    hundred thousand million billion trillion
""")

PART = r"(?:(?:[0-9]{1,3}(?:\ [0-9]{3})+(?![0-9]))|[0-9](?:[0-9.,]*[0-9])?)"
LAST = re.compile(
    rf"""(?<![\w.^/\\])(?<![\w)]\*)(?<!\w\*\*)(?:(?<![\w)\]}}])[+-])?{CURRENCY}?-?
    (?:[0-9]+\ +(?=[0-9]+/[0-9]))?
    \.?{PART}(?:(?:\ ?(?:[-+/^:\u00d7\u00f7]|\*\*?)\ ?|\ x\ ){PART})*(?:\ ?%|!|[^\W\d_]+)?
    (?:\ +(?:{SCALE})\b)?(?:\ +and\ +(?:a|one|two|three)[\ -](?:half|third|quarter)s?\b)?""",
    re.VERBOSE,
)


def quantity(text: str, *, units: bool = True) -> Fraction | None:
    """Returns the exact value of an answer that is one number, or None if it is anything else.

    Args:
      units: whether words may follow the number, as in ``5 apples``.
    """
    if len(text) > LONGEST:
        return None
    if len(text) <= 64 and text.isascii() and text.isdigit():  # most answers
        return Fraction(int(text))
    text = plain(text)
    if match := BEFORE.match(text):
        text = text[match.end() :]
    match = QUANTITY.fullmatch(text)
    if match is None or (match["sign"] and match["inner_sign"]):
        return None
    if match["unit"] and not (units and is_unit(match["unit"])):
        return None
    value = magnitude(match)
    if value is None:
        return None
    value *= 10 ** SCALES.get(match["scale"] or "", 0)
    return -value if "-" in match["sign"] + match["inner_sign"] else value


def magnitude(match: re.Match[str]) -> Fraction | None:
    """Returns the value of a match without its sign; None if a fraction is not a number."""
    if match["number"] is not None:
        return Fraction(re.sub("[, ]", "", match["number"]))
    mixed, numerator, denominator = (
        int((match[name] or "0").replace(",", "")) for name in ("mixed", "numerator", "denominator")
    )
    if denominator == 0 or (match["mixed"] is not None and numerator >= denominator):
        return None
    return mixed + Fraction(numerator, denominator)


def is_unit(text: str) -> bool:
    """Returns whether words after a number are a unit that leaves its value as it is."""
    words = re.findall(WORD, text)
    attached = text[0] not in " /" and len(words[0]) <= 2
    return (
        not any(part.lower() in CHANGES for word in words for part in re.split("[-'\u2019]", word))
        and all(len(word) > 1 or word in ALONE for word in words)
        and words[-1] != "a"
        and not (attached and words[0] not in ATTACHED)
    )


def plain(text: str) -> str:
    r"""Returns an answer without LaTeX commands, bold type and marks around it.

    Commands that are not listed stay, and a text with a backslash is no quantity.
    """
    text = unmarked(without_latex(unmarked(text)))
    return re.sub(r"(?<!\S)\*\*([^*]+)\*\*(?=[\s.]|$)", r"\1", text)


def unmarked(text: str) -> str:
    """Returns an answer without a full stop and marks around all of it, up to four pairs."""
    text = text.strip()
    for _ in range(4):
        text = text.removesuffix(".").strip()
        for left, right in (("**", "**"), ("`", "`"), ("\\(", "\\)"), ("\\[", "\\]"), ("$", "$")):
            inside = text[len(left) : -len(right)]
            if len(text) > len(left + right) and text == left + inside + right:
                # Another mark inside belongs to a second pair (`**2** 3 **4**`), except `\\$`.
                text = text if left in inside.replace("\\$", "") else inside.strip()
        if text.startswith(("\\boxed", "\\fbox")) and text.endswith("}"):
            text = boxed(text) or text
    return text


def without_latex(text: str) -> str:
    """Returns a text with the LaTeX commands of numbers and units as plain characters."""
    text = plain_notation(text)
    if "\\" not in text and "{" not in text:
        return text
    text = re.sub(r"\\[,;: ]|~", " ", text)
    words = r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s?\{([^{}\\]{0,100})\}"
    text = re.sub(words, r" \1", text)
    text = re.sub(r"\^\s?(?:\\circ|\{\s?\\circ\s?\})|\\degree", "°", text)
    text = re.sub(r"\^\{([23])\}", r"^\1", text)
    text = re.sub(
        r"(?:([0-9])\s?)?\\[cdt]?frac\s?(?:\{\s?([+-]?[0-9,]{1,64})\s?\}|([0-9]))"
        r"\s?(?:\{\s?([0-9,]{1,64})\s?\}|([0-9])(?![0-9]))",
        lambda m: f"{m[1] + ' ' if m[1] else ''}{m[2] or m[3]}/{m[4] or m[5]}",
        text,
    )
    return re.sub(r"\\([$%])", r"\1", text)


def last_quantity(text: str) -> str | None:
    """Returns the last number of a text, as it is written there, or None if there is none.

    Operators, separators and fractions stay with their numbers, so that the last number of
    ``5 - 3`` or ``1,2`` is no part of it; such a text is no quantity. Digits in words and in
    exponents (``CO2``, ``m^2``) are no numbers.
    """
    last = max(text.rfind(digit) for digit in "0123456789")
    if last < 0:
        return None
    window = without_latex(text[max(0, last - WINDOW) : last + 60])
    numbers = [match[0] for match in LAST.finditer(window)]
    return numbers[-1] if numbers else None
