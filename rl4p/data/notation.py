r"""One notation for the many in which people and models write numbers.

`plain_notation` leaves the rest of a text as it is. Both comparisons of answers read numbers in it:
`quantity.py`, and the term `math` before its library.

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
PERIODS = ("line", "digit", "round", "period")
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
    if not text.isascii():
        text = plain_characters(text)
    if "\\" in text or "{" in text or "~" in text:
        text = THOUSANDS.sub("", text).replace("\\!", "").replace("{,}", ",")
        text = GROUPED.sub(lambda match: re.sub(SEPARATOR, "", match[0]), text)
        text = BRACKET.sub("", text)
    if "." in text:
        if "\\" in text or "(" in text:
            text = REPEATING.sub(repeated, text)
        if "..." in text or "\u2026" in text or "dots" in text:
            text = DOTS.sub(repeated, text)
    if "_" in text:
        text = OTHER_BASE.sub(in_base, text)
    if "0x" in text or "0b" in text or "0o" in text or "0X" in text:
        text = PREFIXED.sub(lambda match: str(int(match[0], 0)), text)
    if "10" in text and ("^" in text or "**" in text):
        text = POWER_OF_TEN.sub(scaled, text)
    return EXPONENT.sub(scaled, text) if E_NOTATION.search(text) else text


def plain_characters(text: str) -> str:
    """Returns a text without digits, signs and spaces of other scripts."""
    text = SPACED.sub(lambda match: re.sub(r"\s", "", match[0]), text)
    text = OVERLINED.sub(lambda match: rf"\overline{{{match[0][::2]}}}", text)
    text = DOTTED.sub(r"\\dot{\1}", text).translate(CHARACTERS)
    # Powers and indices of several characters.
    text = re.sub(r"\^[0-9+-](?:\^[0-9])+", lambda m: f"^{{{m[0].replace('^', '')}}}", text)
    return re.sub(r"_[0-9](?:_[0-9])+", lambda m: f"_{{{m[0].replace('_', '')}}}", text)


def repeated(match: re.Match[str]) -> str:
    """Returns a repeating decimal as a fraction."""
    groups = match.groupdict()
    period = (
        groups["line"] or groups.get("digit") or groups.get("round") or groups.get("period") or ""
    )
    if groups.get("last"):
        period += groups["between"] + groups["last"]
    whole = Fraction((groups["whole"] or "0").replace(",", "") + "." + groups["fixed"] + "0")
    places = 10 ** len(groups["fixed"])
    return written(whole + Fraction(int(period), places * (10 ** len(period) - 1)))


def in_base(match: re.Match[str]) -> str:
    """Returns a number of another base in base ten; the text itself if it is no such number."""
    digits = match["inner"] or match["digits"]
    base = BASE.get(match["base"]) or int(match["base"])
    letters = not any(character.isdigit() for character in digits)
    if not 2 <= base <= 16 or (letters and (base < 16 or len(digits) < 2)):  # F_{16}, a_2
        return match[0]
    whole, _, part = digits.partition(".")
    try:
        return written(Fraction(int(whole + part, base), base ** len(part)))
    except ValueError:
        return match[0]


def scaled(match: re.Match[str]) -> str:
    """Returns a number in scientific notation as a decimal; the text itself if it is too long."""
    groups = match.groupdict()
    mantissa, power = groups["mantissa"] or "1", groups.get("braced") or groups["power"]
    exponent = int(power.replace(" ", ""))
    euler = "braced" not in groups and mantissa.isdigit() and mantissa != "1"
    if abs(exponent) > LONGEST_POWER or (euler and len(power) == 2 and not power[0].isdigit()):
        return match[0]
    return format(Decimal(mantissa.replace(",", "")).scaleb(exponent), "f")


def written(value: Fraction) -> str:
    """Returns a fraction in LaTeX."""
    if value.denominator == 1:
        return str(value.numerator)
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
