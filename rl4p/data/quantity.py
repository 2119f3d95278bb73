r"""Quantities: numbers as people write them in answers, with units, fractions and LaTeX.

A grader that takes a wrong answer for a right one teaches it, while a right answer that is missed
only costs a sample. So a text is a quantity only if all of it is understood. The rules:

    1,234.50  1{,}234  1\,234     thousands separators, in the right places only: `1,2` is nothing
    10,\!000  1 234               (the table below)
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

`plain_notation` first brings numbers into one notation, also for the term `math` before its
library. It leaves the rest of a text as it is:

    digits, signs and spaces of other scripts, zero width, powers, 1/2 in one character
    10,\!000  10{,}000  10\,000            separators of thousands, with each space but ASCII's
    0.\overline{3}  0.(3)  0.333...        repeating decimals, \bar and \dot and Unicode's too
    101_2  (101)_{2}  1F_{16}  0x1F        other bases, also 101_{\text{two}}
    1.6\times 10^{-19}  1.6e-19  10^{5}    scientific notation
    \left( \right]                         sizes

An integer times e, plus or minus one digit, as in ``2e-1``, stays: it may be Euler's number.
"""

import re
import unicodedata
from decimal import Decimal
from fractions import Fraction

from rl4p.data.box import boxed

MINUS = frozenset("\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d")
POWERS = "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b\u207a"
INDICES = "\u2080\u2081\u2082\u2083\u2084\u2085\u2086\u2087\u2088\u2089"
LONGEST_POWER = 60  # decimal places

WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,64})"
SEPARATOR = r"(?:\\[,;:\ ]|~|\\thinspace(?![a-z])|\{\\,\})"
THOUSANDS = re.compile(r"(?<=[0-9])(?:,\s*\\!\s*|\{,\})(?=[0-9]{3}(?![0-9]))")
GROUPED = re.compile(rf"(?<![0-9.,])[0-9]{{1,3}}(?:{SEPARATOR}[0-9]{{3}})+(?![0-9])")
SPACED = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:[^\S\n\r\t ][0-9]{3})+(?![0-9])")
BRACKET = re.compile(r"\\(?:left|right)\s*(?=[()\[\]|]|\\[{}|])")
OVERLINED = re.compile(r"(?:[0-9]\u0305)+|(?:[0-9]\u0304)+")
DOTTED = re.compile(r"([0-9])\u0307")
REPEATING = re.compile(
    rf"""(?<![\w.\\])(?<![0-9]\ )(?P<whole>{WHOLE})?\.(?P<fixed>[0-9]{{0,30}})\{{?
    (?:\\(?:overline|bar|dot)\s?(?:\{{\s?(?P<line>[0-9]{{1,30}})\s?\}}|(?P<digit>[0-9]))
          (?:(?P<between>[0-9]{{0,30}})\\dot\s?\{{?(?P<last>[0-9])\}}?)?\}}?
      |\((?P<round>[0-9]{{1,30}})\))(?![0-9.])""",
    re.VERBOSE,
)
DOTS = re.compile(
    rf"(?<![\w.\\])(?P<whole>{WHOLE})?\.(?P<fixed>[0-9]{{0,20}}?)"
    r"(?:(?P<line>[0-9])(?P=line){2,}|(?P<period>[0-9]{2,20}?)(?P=period)+)"
    r"(?:\.\.\.|\u2026|\\[lc]?dots(?![a-z]))"
)
BASES = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
BASE = {name: base for base, name in enumerate(BASES, 2)} | {"sixteen": 16}
OTHER_BASE = re.compile(
    r"(?<![\w.\\^}])(?:\((?P<inner>[0-9A-F]{1,64})\)|(?P<digits>[0-9A-F]{1,64}(?:\.[0-9A-F]{1,30})?))"
    rf"_(?:\{{?\(?\s?(?:\\(?:text|mathrm)\{{)?\s?(?:base\s)?(?P<base>[0-9]{{1,2}}|{'|'.join(BASE)})"
    r"\s?\}?\)?\}?)(?![\w.])"
)
PREFIXED = re.compile(r"(?<![\w.\\])0(?:[xX][0-9a-fA-F]{1,16}|b[01]{1,64}|o[0-7]{1,20})(?![\w.])")
# No part of a product, a power or a fraction may stand before it.
MANTISSA = rf"(?<![\w.^_}}{{)\\/])(?<![0-9]\s)(?P<mantissa>{WHOLE}?(?:\.[0-9]{{1,64}})?)"
POWER_OF_TEN = re.compile(
    rf"(?:{MANTISSA}(?<=[0-9])\s?(?:\\times|\\cdot|\\ast|[\u00d7\u00b7*x])\s?"
    r"|(?<![\w.^_}{)\\/*])(?<!\\times )(?<!\\cdot ))"
    r"10\s?(?:\^|\*\*)\s?(?:\{\s?(?P<braced>[+-]?\s?[0-9]{1,3})\s?\}|(?P<power>-?[0-9]{1,3}))"
    r"(?![\w^!({\\]|\.[0-9])"
)
E_NOTATION = re.compile(r"[0-9][eE][+-]?[0-9]")  # quick, for texts without it
EXPONENT = re.compile(
    rf"{MANTISSA}(?<=[0-9])[eE](?P<power>[+-]?[0-9]{{1,3}})(?![\w^!({{\\]|\.[0-9])"
)


class Characters(dict[int, str]):
    """The plain form of each character that is not ASCII, for `str.translate`."""

    def __missing__(self, code: int) -> str:
        character = plain = chr(code)
        if code >= 128:
            kind = unicodedata.category(character)
            if character in MINUS:
                plain = "-"
            elif character in POWERS:
                plain = "^" + "0123456789-+"[POWERS.index(character)]
            elif character in INDICES:
                plain = "_" + str(INDICES.index(character))
            elif kind == "Nd":
                plain = str(unicodedata.decimal(character))
            elif kind == "No" and "\u2044" in unicodedata.normalize("NFKC", character):
                plain = " " + unicodedata.normalize("NFKC", character).replace("\u2044", "/")
            elif kind == "Zs":
                plain = " "
            elif kind == "Cf":  # zero width
                plain = ""
            elif 0xFF01 <= code <= 0xFF5E:
                plain = chr(code - 0xFEE0)
            elif character in "\u2044\u2215":
                plain = "/"
        self[code] = plain
        return plain


CHARACTERS = Characters()


def plain_notation(text: str) -> str:
    """Returns a text in which every number has one notation (the table of this file)."""
    if not text.isascii():  # digits, signs and spaces of other scripts
        text = SPACED.sub(lambda match: re.sub(r"\s", "", match[0]), text)
        text = OVERLINED.sub(lambda match: rf"\overline{{{match[0][::2]}}}", text)
        text = DOTTED.sub(r"\\dot{\1}", text).translate(CHARACTERS)
        # Powers and indices of several characters.
        text = re.sub(r"\^[0-9+-](?:\^[0-9])+", lambda m: f"^{{{m[0].replace('^', '')}}}", text)
        text = re.sub(r"_[0-9](?:_[0-9])+", lambda m: f"_{{{m[0].replace('_', '')}}}", text)
    if "\\" in text or "{" in text or "~" in text:
        text = THOUSANDS.sub("", text).replace("\\!", "").replace("{,}", ",")
        text = GROUPED.sub(lambda match: re.sub(SEPARATOR, "", match[0]), text)
        text = BRACKET.sub("", text)
    if "." in text:
        if "\\" in text or "(" in text:
            text = REPEATING.sub(repeating_decimal, text)
        if "..." in text or "\u2026" in text or "dots" in text:
            text = DOTS.sub(repeating_decimal, text)
    if "_" in text:
        text = OTHER_BASE.sub(base_ten, text)
    if "0x" in text or "0b" in text or "0o" in text or "0X" in text:
        text = PREFIXED.sub(lambda match: str(int(match[0], 0)), text)
    if "10" in text and ("^" in text or "**" in text):
        text = POWER_OF_TEN.sub(plain_decimal, text)
    return EXPONENT.sub(plain_decimal, text) if E_NOTATION.search(text) else text


def repeating_decimal(match: re.Match[str]) -> str:
    """Returns a repeating decimal as a fraction."""
    groups = match.groupdict()
    period = (
        groups["line"] or groups.get("digit") or groups.get("round") or groups.get("period") or ""
    )
    if groups.get("last"):
        period += groups["between"] + groups["last"]
    whole = Fraction((groups["whole"] or "0").replace(",", "") + "." + groups["fixed"] + "0")
    places = 10 ** len(groups["fixed"])
    return latex_fraction(whole + Fraction(int(period), places * (10 ** len(period) - 1)))


def base_ten(match: re.Match[str]) -> str:
    """Returns a number of another base in base ten; the text itself if it is no such number."""
    digits = match["inner"] or match["digits"]
    base = BASE.get(match["base"]) or int(match["base"])
    letters = not any(character.isdigit() for character in digits)
    if not 2 <= base <= 16 or (letters and (base < 16 or len(digits) < 2)):  # F_{16}, a_2
        return match[0]
    whole, _, part = digits.partition(".")
    try:
        return latex_fraction(Fraction(int(whole + part, base), base ** len(part)))
    except ValueError:
        return match[0]


def plain_decimal(match: re.Match[str]) -> str:
    """Returns a number in scientific notation as a decimal; the text itself if it is too long."""
    groups = match.groupdict()
    mantissa, power = groups["mantissa"] or "1", groups.get("braced") or groups["power"]
    exponent = int(power.replace(" ", ""))
    euler = "braced" not in groups and mantissa.isdigit() and mantissa != "1"
    if abs(exponent) > LONGEST_POWER or (euler and len(power) == 2 and not power[0].isdigit()):
        return match[0]
    return format(Decimal(mantissa.replace(",", "")).scaleb(exponent), "f")


def latex_fraction(value: Fraction) -> str:
    """Returns a fraction in LaTeX."""
    if value.denominator == 1:
        return str(value.numerator)
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


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
    if unit := match["unit"]:  # words that leave the value as it is
        words = re.findall(WORD, unit)
        attached = unit[0] not in " /" and len(words[0]) <= 2
        parts = [part.lower() for word in words for part in re.split("[-'\u2019]", word)]
        if not units or any(part in CHANGES for part in parts) or words[-1] == "a":
            return None
        if attached and words[0] not in ATTACHED:
            return None
        if any(len(word) == 1 and word not in ALONE for word in words):
            return None
    if match["number"] is not None:
        value = Fraction(re.sub("[, ]", "", match["number"]))
    else:
        mixed, numerator, denominator = (
            int((match[name] or "0").replace(",", ""))
            for name in ("mixed", "numerator", "denominator")
        )
        if denominator == 0 or (match["mixed"] is not None and numerator >= denominator):
            return None
        value = mixed + Fraction(numerator, denominator)
    value *= 10 ** SCALES.get(match["scale"] or "", 0)
    return -value if "-" in match["sign"] + match["inner_sign"] else value


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
