r"""The number that a response states as its answer, in whatever format.

Models that were not trained for a format answer in many: in a box, after a marker or a heading, in
bold type, in a sentence. `stated` looks at these places, and the first that has a number decides:

    1. the last line after ``####`` with a number: ``#### 12``, ``#### Total: $12``. Headings such
       as ``#### Step 2: add 5`` do not count, and of a heading ``#### Answer`` the line below does.
    2. the last box
    3. the last ``<answer> 12 </answer>``
    4. what follows the last ``answer is`` or ``answer:``
    5. the only number in bold type in the last line
    6. the last number

In this place, ``12, which is the total``, ``12 (twelve)``, ``5 + 7 = 12`` and ``She has 12 apples
left`` state 12. If something there may change the number or take it back, all of the place is the
answer, which equals no number: ``12 or 15``, ``not 12``, ``12 and a half``.

A text without a number has the answer that stands after ``####``, in the box or in the tags.
"""

import re

from rl4p.data.answer import MARKER, final_answer, tagged
from rl4p.data.box import BOX, boxed
from rl4p.data.quantity import CHANGES, LAST, LONGEST, last_quantity, quantity, without_latex

TOKEN = re.compile(r"<\|[^|<>]{1,40}\|>|</?s>|<eos>|<end_of_turn>|[\u200b\ufeff]")  # special tokens
STEP = re.compile(r"\W*(?:step|part|case|option|method)\s+\d+\b", re.IGNORECASE)
TITLE = re.compile(r"\W*(?:the )?(?:final )?(?:answer|result|solution)\W*", re.IGNORECASE)
PHRASE = re.compile(r"\banswer(?:\*\*)?(?: is\b|\s*[:=])(?:\*\*)?[\s:]*", re.IGNORECASE)
BOLD = re.compile(r"\*\*([^*\n]{1,100})\*\*")
# What ends the part of a sentence that has the answer: `12. Then`, `12, which`, `12 in 3 days`.
PAUSE = re.compile(
    r"[!?;\u3002]|[.,](?=\s*$|\s+[^\s\d])|\s[-\u2013\u2014]\s(?=[^\W\d])|\s(?=\()"
    r"|\s(?:because|since|as|in|for|out of|of the)\s"
)
MORE = re.compile(r"\s*(?:(?:or|and(?! not)|to|but not|nor|wait|no)\b)", re.IGNORECASE)
QUOTES = " \"'[]()_*#\u201c\u201d"
LABEL = re.compile(r"[^\d=:+*/\\]{1,60}[:=]\s*")
# Words of a sentence around a number that leave it as it is, although they are no unit.
HARMLESS = frozenset({"is", "are", "was", "and", "to", "equals", "equal", "over"})
SIGN = re.compile(r"[^\w\s,.:'\u2019$€£%-]|(?<!\w)-|-(?!\w)|\d")  # what may change a number
DIGIT = re.compile(r"\d")


def stated(text: str) -> str | None:
    """Returns the answer that a response states, or None if it states none."""
    text = TOKEN.sub("", text).rstrip()
    for place in (marked_line, boxed, tagged, answer_sentence, bold_number):
        answer = place(text)
        if answer is not None and DIGIT.search(answer):
            return number_of(answer)
    if boxed(text) is None and re.search(BOX, text):
        return None  # the response was cut
    number = last_quantity(text)
    if number is None:
        marked = (final_answer(text), boxed(text), tagged(text))
        return next((text for text in marked if text), None)
    return None if re.search(rf"\b(?:not|or|than)\s+{re.escape(number)}\D*$", text) else number


def marked_line(text: str) -> str | None:
    """Returns the last line after ``####`` that has a number and is no heading of a step."""
    for part in reversed(text.split(MARKER)[1:]):
        lines = [line.strip() for line in part.strip().splitlines() if line.strip()] or [""]
        line = lines[1] if TITLE.fullmatch(lines[0]) and len(lines) > 1 else lines[0]
        if DIGIT.search(line) and not STEP.match(line):
            return line
    return None


def answer_sentence(text: str) -> str | None:
    """Returns the rest of the line after the last ``answer is`` that has a number behind it."""
    for phrase in reversed(list(PHRASE.finditer(text))):
        line = text[phrase.end() : phrase.end() + LONGEST].partition("\n")[0].strip()
        if DIGIT.search(line):
            return line
    return None


def bold_number(text: str) -> str | None:
    """Returns the bold text of the last line, if it is one number."""
    line = text.strip().rpartition("\n")[2]
    numbers = [bold for bold in BOLD.findall(line) if DIGIT.search(bold)]
    return numbers[0] if len(numbers) == 1 and quantity(numbers[0]) is not None else None


def number_of(text: str) -> str:
    """Returns the only number of a line, or the line if this does not have one number."""
    for part in (text, *readings(text)):
        if quantity(part) is not None:
            return part
    return text


def readings(text: str) -> list[str]:
    """Returns shorter texts that mean the same as a line, if they are one number."""
    inside = boxed(text) or tagged(text) or answer_sentence(text)
    if inside is not None and DIGIT.search(inside):
        return [inside, *readings(inside)]
    line = text.strip(QUOTES)
    digit = DIGIT.search(line)
    pause = digit and PAUSE.search(line, digit.start())
    if pause and not MORE.match(line, pause.end()):
        line = line[: pause.start()].strip(QUOTES)
    if len(line) > LONGEST:
        return []
    shorter = [line]
    if label := LABEL.match(line):
        shorter.append(line[label.end() :].strip(QUOTES))
    head, equal, right = line.rpartition("=")
    if equal and DIGIT.search(head):
        shorter.append(right.strip(QUOTES))
    elif not equal:
        shorter += only_number(line)
    return shorter


def only_number(line: str) -> list[str]:
    """Returns the number of a sentence that has one, and no word or sign that may change it."""
    plain = without_latex(line)
    numbers = list(LAST.finditer(plain))
    if len(numbers) != 1:
        return []
    around = f"{plain[: numbers[0].start()]} {plain[numbers[0].end() :]}"
    words = re.findall(r"[^\W\d_]+", around.lower())
    if SIGN.search(around) or (CHANGES - HARMLESS).intersection(words):
        return []
    return [numbers[0][0]] if all(len(word) > 1 or word in "ai" for word in words) else []
