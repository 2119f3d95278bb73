r"""What stands behind a number and changes it: second units, directions, times of day, dates.

The library that compares answers takes whatever stands in ``\text{}`` after a number for its unit
and drops it. These answers are compared here, before the library sees them:

    5\text{ ft }3\text{ in}   63 inches     several units: as a sum if their sizes are known,
    7\text{ remainder }2      7 R 2         else number by number
    5\text{ hours}            300 minutes   one known unit on both sides, of the same kind
    3\text{ dozen}            36            words that multiply
    20\text{ below zero}      -20           words that change the sign
    10:30\text{ p.m.}         22:30         times of day
    10\text{ m east}  N 30^\circ E          directions, in their order
    50\%\text{ increase}                    directions of a change
    May 5th, 2020  2020-05-05  5 May 2020   dates; 5/3/2020 is compared part by part
    1, 3, 5, \ldots                         sequences, dots at the same places
    f'(x)                                   as many primes

An answer may say more than the reference (``10 m east`` for 10), but not the opposite, and no less
where a word makes another answer of the number. What is not understood is not equal.
"""

import re
from collections import Counter
from collections.abc import Callable
from fractions import Fraction

from rl4p.data.quantity import quantity

TEXT = re.compile(r"\\(?:text(?:bf|it|rm)?|mbox|math(?:rm|bf|it))\s?\{([^{}]*)\}")
MARKS = (
    (re.compile(r"\^\s?(?:\\circ|\{\s?\\circ\s?\})|\\degree|°"), " degrees "),
    (re.compile(r"\^\s?\{\s?\\prime\s?\\prime\s?\}|''|\"|\u2033|\u201d"), " doubleprime "),
    (re.compile(r"\^\s?(?:\\prime(?![a-z])|\{\s?\\prime\s?\})|'|\u2032|\u2019"), " prime "),
    (re.compile(r"\\[,;:! ]|~|\\q?quad(?![a-zA-Z])"), " "),
    (re.compile(r"\\([%$])"), r"\1"),
)
FRACTION = r"(?:\d+ ?)?\\[cdt]?frac\{\d+\}\{\d+\}|(?:\d+ )?\d+/\d+"
UNIT = r"(?:%|[a-zA-Z]+\.?(?:\^\{?[23]\}?)?)?(?:\s+[a-zA-Z]+\.?)*"
PART = re.compile(rf"(-?\$?(?:{FRACTION}|\d[\d,]*(?:\.\d+)?|\.\d+))\s*({UNIT}),?\s*")

# The size of each unit, by its kind; sizes of different kinds are not compared.
SIZES: dict[str, dict[str, Fraction]] = {
    "time": {
        **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), Fraction(1)),
        **dict.fromkeys(("min", "mins", "minute", "minutes"), Fraction(60)),
        **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), Fraction(3600)),
        **dict.fromkeys(("d", "day", "days"), Fraction(86400)),
        **dict.fromkeys(("week", "weeks"), Fraction(604800)),
    },
    "calendar": {
        **dict.fromkeys(("month", "months"), Fraction(1)),
        **dict.fromkeys(("yr", "yrs", "year", "years"), Fraction(12)),
    },
    "foot": {
        **dict.fromkeys(("in", "inch", "inches", "doubleprime"), Fraction(1)),
        **dict.fromkeys(("ft", "foot", "feet", "prime"), Fraction(12)),
        **dict.fromkeys(("yd", "yds", "yard", "yards"), Fraction(36)),
        **dict.fromkeys(("mi", "mile", "miles"), Fraction(63360)),
    },
    "metre": {
        **dict.fromkeys(("mm", "millimeter", "millimeters"), Fraction(1)),
        **dict.fromkeys(("cm", "centimeter", "centimeters", "centimetres"), Fraction(10)),
        **dict.fromkeys(("m", "meter", "meters", "metre", "metres"), Fraction(1000)),
        **dict.fromkeys(("km", "kilometer", "kilometers", "kilometres"), Fraction(10**6)),
    },
    "pound": {
        **dict.fromkeys(("oz", "ounce", "ounces"), Fraction(1)),
        **dict.fromkeys(("lb", "lbs", "pound", "pounds"), Fraction(16)),
    },
    "gram": {
        **dict.fromkeys(("mg", "milligram", "milligrams"), Fraction(1)),
        **dict.fromkeys(("g", "gram", "grams"), Fraction(1000)),
        **dict.fromkeys(("kg", "kilogram", "kilograms"), Fraction(10**6)),
    },
    "cup": {
        **dict.fromkeys(("cup", "cups"), Fraction(1)),
        **dict.fromkeys(("pint", "pints", "pt"), Fraction(2)),
        **dict.fromkeys(("quart", "quarts", "qt"), Fraction(4)),
        **dict.fromkeys(("gallon", "gallons", "gal"), Fraction(16)),
    },
    "litre": {
        **dict.fromkeys(("ml", "mL", "milliliter", "milliliters"), Fraction(1)),
        **dict.fromkeys(("l", "L", "liter", "liters", "litre", "litres"), Fraction(1000)),
    },
    "angle": {
        **dict.fromkeys(("arcsecond", "arcseconds"), Fraction(1)),
        **dict.fromkeys(("arcminute", "arcminutes"), Fraction(60)),
        **dict.fromkeys(("deg", "degree", "degrees"), Fraction(3600)),
    },
    "money": {
        **dict.fromkeys(("cent", "cents"), Fraction(1)),
        **dict.fromkeys(("dollar", "dollars"), Fraction(100)),
    },
}
KINDS = {unit: kind for kind, sizes in SIZES.items() for unit in sizes}
MULTIPLES = {"dozen": 12, "dozens": 12, "gross": 144}
COMPASS = {name: name for name in ("north", "south", "east", "west")}
COMPASS |= {a + b: f"{a} {b}" for a in ("north", "south") for b in ("east", "west")}
LETTERS = {name[0].upper(): name for name in ("north", "south", "east", "west")}
# Words that say which of two answers is meant, in pairs of opposites.
OPPOSITES = (
    ("increase rise gain growth profit increased", "decrease fall loss drop reduction discount"),
    ("more greater", "less fewer"),
    ("ago earlier before early", "later after late hence"),
    ("ad ce", "bc bce"),
    ("clockwise", "counterclockwise anticlockwise"),
    ("left", "right"),
    ("up upward upwards", "down downward downwards"),
    ("forward forwards", "backward backwards"),
)
SIDES = {
    word: (pair, side)
    for pair, sides in enumerate(OPPOSITES)
    for side, words in enumerate(sides)
    for word in words.split()
}
CHANGE, HEADING = 0, len(OPPOSITES)  # what an answer must have if the reference has it
CLOCK = re.compile(
    r"(\d{1,2}(?::[0-5]\d){0,2})\s*"
    r"(?:([ap])\.?\s?m\b\.?|(noon|midnight)|(?:o'?clock )?in the (morning|afternoon|evening))",
    re.IGNORECASE,
)
PLAIN_CLOCK = re.compile(r"(?:[01]?\d|2[0-3])(?::[0-5]\d){1,2}")
MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september")
MONTHS += ("october", "november", "december")
MONTH = {name[:size]: i for i, name in enumerate(MONTHS, 1) for size in (3, len(name))}
DATE = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})")
SLASHED = re.compile(r"\d{1,4}/\d{1,2}/\d{1,4}")
DOTS = re.compile(r"\\[lc]?dots(?![a-z])|\.\.\.|\u2026")
PRIMES = re.compile(r"'|\\prime|\u2032")


def same_measure(reference: str, given: str, same: Callable[[str, str], bool]) -> bool | None:
    """Returns whether two answers are equal by what stands behind their numbers.

    Args:
      same: whether two parts without such words are equal.

    Returns:
      None if that decides nothing: the numbers alone count.
    """
    texts = plain_words(reference), plain_words(given)
    if any(DOTS.search(text) for text in texts):
        parts = [re.split(r"\s*,\s*", DOTS.sub("...", text)) for text in texts]
        return len(parts[0]) == len(parts[1]) and all(
            a == b or ("..." not in a + b and same(a, b)) for a, b in zip(*parts, strict=True)
        )
    if CLOCK.fullmatch(texts[0]):
        return clock(texts[0]) == clock(texts[1])
    if CLOCK.fullmatch(texts[1]):
        own = clock(texts[0])  # if it is unknown, the answer says more than the reference
        return own == clock(texts[1]) if own else same(reference, CLOCK.sub(r"\1", texts[1]))
    days = [date(text) for text in texts]
    if any(days):
        return days[0] == days[1]
    wanted, got = map(directions, texts)
    for kind, sides in wanted.items():
        if got.get(kind, sides if kind not in (CHANGE, HEADING) else None) != sides:
            return False
    first, second = map(measures, texts)
    if first is None or second is None:
        compound = len(first or second or ()) > 1
        primes = {len(PRIMES.findall(text)) for text in (reference, given)}
        return False if compound or len(primes) > 1 else None
    return same_amounts(first, second)


def plain_words(text: str) -> str:
    """Returns an answer with the texts of LaTeX, and marks of units as words."""
    text = TEXT.sub(r" \1 ", text)
    for pattern, word in MARKS:
        text = pattern.sub(word, text)
    return " ".join(text.split())


def clock(text: str) -> tuple[int, ...] | None:
    """Returns the hours, minutes and seconds of a time whose half of the day is known."""
    match = CLOCK.fullmatch(text)
    hours, *rest = (int(part) for part in re.findall(r"\d+", text)) if match else (0,)
    if match and 1 <= hours <= 12:
        later = (match[2] or "").lower() == "p" or match[4] in ("afternoon", "evening")
        hours = hours % 12 + 12 * (later or (match[3] or "").lower() == "noon")
    elif PLAIN_CLOCK.fullmatch(text):
        hours, *rest = map(int, text.split(":"))
        if 0 < hours < 13:
            return None
    else:
        return None
    return hours, *rest, *[0] * (2 - len(rest))


def date(text: str) -> tuple[int, ...] | None:
    """Returns month, day and year as far as they are given; all parts in order without a name."""
    if match := DATE.fullmatch(text):
        year, month, day = map(int, match.groups())
        return month, *sorted((day, year))
    if SLASHED.fullmatch(text):
        return tuple(map(int, text.split("/")))
    words = re.findall(r"[^\W\d]+|\d+", re.sub(r"(?<=\d)(?:st|nd|rd|th)\b", "", text))
    months = [MONTH[word.lower()] for word in words if word.lower() in MONTH]
    numbers = [int(word) for word in words if word.isdecimal()]
    others = {x for x in words if not x.isdecimal() and x.lower() not in MONTH} - {"of", "the"}
    if others or len(months) != 1 or not 1 <= len(numbers) <= 2:
        return None
    return months[0], *sorted(numbers)


def directions(text: str) -> dict[int, list[object]]:
    """Returns the directions that an answer names, in their order, by their kind."""
    found: dict[int, list[object]] = {}
    for word in re.findall(r"[a-zA-Z]+", text):
        if word.lower() in SIDES:
            kind, side = SIDES[word.lower()]
            found.setdefault(kind, []).append(side)
        elif heading := COMPASS.get(word.lower()) or ("degrees" in text and LETTERS.get(word)):
            found.setdefault(HEADING, []).append(heading)
    return found


def measures(text: str) -> list[tuple[Fraction, str, bool]] | None:
    """Returns the numbers of an answer with their units; None if it is anything else.

    The last item of each says whether a word has changed the number.
    """
    parts: list[tuple[Fraction, str, bool]] = []
    place = 0
    while place < len(text):
        match = PART.match(text, place)
        value = None if match is None else quantity(match[1])
        if match is None or value is None or (parts and match[1].startswith("-")):
            return None
        unit: list[str] = []
        place, changed = match.end(), False
        words = [word.rstrip(".,") for word in (match[2] or "").split()]
        for i, word in enumerate(words):
            if word.lower() in MULTIPLES or (word == "below" and words[i + 1 : i + 2] == ["zero"]):
                value, changed = value * MULTIPLES.get(word.lower(), -1), True
            elif word.lower() not in {
                *SIDES,
                *COMPASS,
                *LETTERS.values(),
                "zero",
                "of",
                "and",
                "a",
            }:
                unit.append(word)
        if parts and KINDS.get(parts[0][1]) == "angle":
            angles = {"prime": "arcminutes", "doubleprime": "arcseconds"}
            unit = [angles.get(word, word) for word in unit]
        parts.append((value, " ".join(unit), changed))
    units = [unit for _, unit, _ in parts]
    if not all(units[:-1]) or any(len(x) == 1 and x not in KINDS and x not in "%rR" for x in units):
        return None  # a list, a product, or a number with a variable
    return parts or None


def same_amounts(
    first: list[tuple[Fraction, str, bool]], second: list[tuple[Fraction, str, bool]]
) -> bool | None:
    """Returns whether amounts are equal; None if they are two numbers with nothing to compare."""
    kinds = {KINDS.get(unit) for _, unit, _ in (*first, *second)}
    if len(kinds) == 1 and (kind := kinds.pop()) is not None:
        sums = [sum(x * SIZES[kind][unit] for x, unit, _ in each) for each in (first, second)]
        return sums[0] == sums[1]
    if len(first) == len(second) == 1:
        changed = first[0][2] or second[0][2]
        return first[0][0] == second[0][0] if changed else None
    singular = [
        Counter(
            (x, {"R": "remainder", "r": "remainder"}.get(u, u.removesuffix("s")))
            for x, u, _ in each
        )
        for each in (first, second)
    ]
    return singular[0] == singular[1]
