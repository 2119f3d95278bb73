r"""Rules that find the final answer of a response.

    hashes   12 apples    of `... #### 12 apples`, GSM8K's format: the rest of the line
    boxed    \frac{3}{4}  of `... \boxed{\frac{3}{4}}.`, the format of MATH
    answer   12           of `... <answer> 12 </answer>`
    number   12           of `... makes 12 apples.`: the last number, in no particular format
    stated   12           of any of them, and of `The answer is 12, since ...`

Thoughts are cut off before every rule (`after_thoughts`). Of several marked answers the last one
counts. A box or a tag that is never closed belongs to a response that was cut: it has no answer,
and an earlier answer does not take its place.

`stated` looks for a number where models that were not trained for a format put it. The first of
these places that has one decides:

    1. the last line after ``####`` with a number: ``#### 12``, ``#### Total: $12``. Headings such
       as ``#### Step 2: add 5`` do not count, and of a heading ``#### Answer`` the line below does.
    2. the last box
    3. the last ``<answer> 12 </answer>``
    4. what follows the last ``answer is`` or ``answer:``
    5. the only number in bold type in the last line
    6. the last number

In this place, ``12, which is the total``, ``12 (twelve)``, ``5 + 7 = 12`` and ``She has 12 apples
left`` state 12. If something there may change the number or take it back, all of the place is the
answer, which equals no number: ``12 or 15``, ``not 12``, ``12 and a half``. A text without a number
has the answer that stands after ``####``, in the box or in the tags.

Thoughts stand between ``<think>`` and ``</think>``. The first tag is often the end of the prompt,
because the chat template writes it. Other models have other tags: ``<thinking>``, ``<thought>``,
``<reasoning>``, ``<seed:think>``, ``[THINK]``, ``◁think▷`` and ``<|begin_of_thought|>``.
"""

import functools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from rl4p.base.types import Episode
from rl4p.data.box import BOX, boxed
from rl4p.data.quantity import CHANGES, LAST, LONGEST, last_quantity, quantity, without_latex

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MARKER = "####"


def final_answer(text: str) -> str | None:
    """Returns the rest of the line after the last ``####``, or None if there is no ``####``."""
    _, marker, tail = text.rpartition(MARKER)
    return tail.strip().split("\n")[0].strip() if marker else None


def tagged(text: str) -> str | None:
    """Returns the text between the last ``<answer>`` and the ``</answer>`` after it, or None."""
    _, opened, tail = text.rpartition("<answer>")
    inside, closed, _ = tail.partition("</answer>")
    return inside.strip() if opened and closed else None


def same_answer(given: str | None, reference: str) -> bool:
    """Returns whether an answer is right.

    If the reference is a number without words, such as ``12``, ``$1,200`` or ``3/4``, the answer
    has to be exactly this number; it may have a unit (`quantity` lists the notations).
    Otherwise, it has to be the same text up to white space: ``5 apples`` is not ``5 pears``. An
    empty answer is never right.
    """
    if given is None or not given.strip():
        return False
    expected = quantity(reference, units=False)
    if expected is None:
        return given.split() == reference.split()
    return quantity(given) == expected


MARK = re.compile(
    r"<\s*/?\s*(?:think(?:ing)?|thoughts?|reasoning|scratchpad|seed:think)\s*>"
    r"|\[/?(?-i:THINK)\]|\u25c1/?think\u25b7|<\|(?:begin|end)_of_thought\|>",
    re.IGNORECASE,
)
# Code in an answer, where a tag is a text of the program.
CODE_OR_MARK = re.compile(rf"```.*?```|`[^`\n]*`|{MARK.pattern}", re.IGNORECASE | re.DOTALL)
SIGNS = ("<", "THINK]", "\u25c1")  # one of which each mark has
QUOTES = frozenset("'\"`\u2018\u2019\u201c\u201d")


def after_thoughts(response: str, generation_prompt: str | None = None) -> str | None:
    r"""Returns the part of a response after its thoughts; None if it was cut while thinking.

        15   of `<think>maybe 12</think>15` and of `maybe 12</think>15`
        None of `<think>maybe 12`, and of `maybe 12` after a prompt that ends with `<think>`

    This is the text after the last ``</think>``, and all of it if there is no tag. Thoughts of one
    name end with a tag of the same name. A tag in quotation marks is a word of the text, and so is
    one in code (three backticks, or a pair of them) outside the thoughts.

    Args:
      generation_prompt: what the chat template wrote before the response (`Prompt`); None if that
        is not known.
    """
    before = generation_prompt or ""
    if not any(sign in response for sign in SIGNS):  # most responses
        return None if before and response_is_thought(before) else response
    text = before + response
    thoughts, begin, at = None, len(before), 0  # the name of the thoughts that are open
    while match := (CODE_OR_MARK if thoughts is None else MARK).search(text, at):
        at, mark = match.end(), match[0].lower()
        around = text[match.start() - 1 : match.start()], text[at : at + 1]
        if mark[0] == "`" or QUOTES.issuperset(around):
            continue
        name = name_of_thoughts(mark)
        if "/" not in mark and "end_of" not in mark:
            thoughts = thoughts or name
        elif thoughts in (None, name):
            thoughts, begin = None, max(begin, at)
    return None if thoughts else text[begin:]


def name_of_thoughts(mark: str) -> str:
    """Returns the name of thoughts, which the tags at their beginning and end share."""
    return re.sub(r"begin_of_|end_of_|[^a-z]", "", mark.lower())


@functools.lru_cache(maxsize=64)
def response_is_thought(generation_prompt: str) -> bool:
    """Returns whether a response without tags is a thought that was cut."""
    return after_thoughts(generation_prompt) is None


def thoughts_in_prompt(generation_prompt: str | None) -> str:
    """Returns the tags of thoughts that the chat template wrote, with the text after them."""
    mark = MARK.search(generation_prompt or "")
    return "" if mark is None else mark.string[mark.start() :]


def response_texts(
    tokenizer: "PreTrainedTokenizerFast", tokens: Sequence[Sequence[int]]
) -> list[str]:
    """Returns the texts of responses without special tokens, except the tags of thoughts.

    Some tokenizers have these tags as special tokens (``[THINK]`` of Magistral).
    """
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    skipped = {i for i in special if not MARK.fullmatch(tokenizer.added_tokens_decoder[i].content)}
    if skipped != special:
        kept = [[token for token in row if token not in skipped] for row in tokens]
        return tokenizer.batch_decode(kept, skip_special_tokens=False)
    return tokenizer.batch_decode([list(row) for row in tokens], skip_special_tokens=True)


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
MARKS_OF_TEXT = " \"'[]()_*#\u201c\u201d"
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
            # The answer itself, or a shorter text of the same meaning, if that is one number.
            parts = (answer, *readings(answer))
            return next((part for part in parts if quantity(part) is not None), answer)
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


def readings(text: str) -> list[str]:
    """Returns shorter texts that mean the same as a line, if they are one number."""
    inside = boxed(text) or tagged(text) or answer_sentence(text)
    if inside is not None and DIGIT.search(inside):
        return [inside, *readings(inside)]
    line = text.strip(MARKS_OF_TEXT)
    digit = DIGIT.search(line)
    pause = digit and PAUSE.search(line, digit.start())
    if pause and not MORE.match(line, pause.end()):
        line = line[: pause.start()].strip(MARKS_OF_TEXT)
    if len(line) > LONGEST:
        return []
    shorter = [line]
    if label := LABEL.match(line):
        shorter.append(line[label.end() :].strip(MARKS_OF_TEXT))
    head, equal, right = line.rpartition("=")
    if equal and DIGIT.search(head):
        shorter.append(right.strip(MARKS_OF_TEXT))
    elif not equal:  # a sentence of one number, and of no word or sign that may change it
        plain = without_latex(line)
        numbers = list(LAST.finditer(plain))
        if len(numbers) == 1:
            rest = f"{plain[: numbers[0].start()]} {plain[numbers[0].end() :]}"
            words = re.findall(r"[^\W\d_]+", rest.lower())
            changed = SIGN.search(rest) or (CHANGES - HARMLESS).intersection(words)
            if not changed and all(len(word) > 1 or word in "ai" for word in words):
                shorter.append(numbers[0][0])
    return shorter


Extraction = Literal["hashes", "boxed", "answer", "number", "stated"]
RULES = {
    "hashes": final_answer,
    "boxed": boxed,
    "answer": tagged,
    "number": last_quantity,
    "stated": stated,
}

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
MARKS = {"boxed": re.compile(BOX), "answer": re.compile("<answer>")}


def extract(
    text: str, how: Extraction | Sequence[Extraction], generation_prompt: str | None = None
) -> str | None:
    """Returns the final answer of a response, or None if there is none.

    Args:
      how: one rule, or several that are tried in this order until one finds an answer. Each
        further rule also accepts responses that do not keep to the format.
      generation_prompt: what the chat template wrote before the response (`Prompt`).
    """
    rest = after_thoughts(text, generation_prompt)
    if rest is None:
        return None
    for rule in (how,) if isinstance(how, str) else how:
        answer = RULES[rule](rest)
        if answer is not None or (rule in MARKS and MARKS[rule].search(rest)):  # cut
            return answer
    return None


def answer_of(episode: Episode, how: Extraction | Sequence[Extraction]) -> str | None:
    """Returns the final answer of an episode, or None if there is none."""
    return extract(episode.response, how, episode.prompt.generation_prompt)


def stated_answer(episode: Episode) -> str | None:
    """Returns the text between the last ``<answer>`` and the ``</answer>`` after it.

    Without ``<answer>``, it is all of the response after its thoughts. None stands for a response
    that was cut: its last tag was never closed.
    """
    rest = after_thoughts(episode.response, episode.prompt.generation_prompt)
    if rest is not None and "<answer>" in rest:
        return tagged(rest)
    return None if rest is None else rest.strip()


def tagged_text(episode: Episode, tags: Sequence[str]) -> str:
    """Returns the response with the text before it that the chat template wrote.

    Where that text is not known, a response that closes its thoughts without having opened them
    shows that the template wrote ``<think>``, which then is put before it.
    """
    before, response = episode.prompt.generation_prompt, episode.response
    if before is None:
        opened = response.partition("</think>")
        before = "<think>" if opened[1] and "<think>" not in opened[0] else ""
        before = "" if "<think>" in response or "<think>" not in tags else before
    return before + response
