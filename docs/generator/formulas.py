"""Renders the formulas of docstrings as MathML, which browsers draw without a script or a font.

A formula in a docstring is text: `A = (r - mean(group)) / (std(group) + epsilon), in words`. It is
read word by word. What is no variable, number, sign or function stays text, so that every line can
be rendered, and nothing is lost: the line itself is in the annotation of its formula.
"""

import re
from collections.abc import Sequence
from html import escape, unescape

LETTERS = "alpha beta gamma delta epsilon lambda mu nu phi pi rho tau"
GREEK = {name: unescape(f"&{name};") for name in LETTERS.split()}
NAMES = "KL clip exp log loss max mean min prod rms sg sigmoid sign softmax sqrt std sum"
FUNCTIONS = frozenset(NAMES.split())
ENTITIES = {"<=": "le", ">=": "ge", "<-": "larr", "->": "rarr", "-": "minus", "+-": "plusmn"}
SIGNS = {sign: unescape(f"&{name};") for sign, name in (ENTITIES | {"x": "times"}).items()}
TALL = ("<mfrac", "<msup", "<msqrt")  # parentheses grow with these elements only
WORD = re.compile(
    r"(?P<gap> {2,})|(?P<space> )|(?P<times>(?<= )x(?= ))|(?P<ordinal>[a-z]-th)"
    r"|(?P<name>[A-Za-z][A-Za-z0-9]*(?:_\{[^}]*\}|_[A-Za-z0-9_]+)?(?:'s)?)"
    r"|(?P<number>\d+(?:\.\d+)?(?:e-?\d+)?)"
    r"|(?P<sign><=|>=|<-|->|\+-|\+=|[-+*/=<>^|,.:;'])"
    r"|(?P<open>[(\[])|(?P<close>[)\]])|(?P<other>.)"
)
PROSE = "mtext"  # elements of words, which are no part of a fraction


def rendered(text: str) -> str:
    """Returns Markdown in which each block of formulas, which is indented, is MathML."""
    block = re.compile(r"(?:^ {4}.*\n?)+", re.MULTILINE)
    return block.sub(lambda found: formulas(found[0].splitlines()) + "\n", text)


def formulas(lines: Sequence[str]) -> str:
    """Returns the lines of a block as formulas below one another."""
    return f'<div class="formulas">{"".join(map(formula, lines))}</div>'


def formula(line: str) -> str:
    """Returns a line as one formula."""
    text = re.sub(r" +(?==)", " ", line.strip())
    source = f'<annotation encoding="text/plain">{escape(text)}</annotation>'
    words, parts = words_of(text), ""
    while words:
        parts += row(words)
        parts += f"<mo>{words.pop(0)[1]}</mo>" if words else ""  # a parenthesis that none opens
    return f"<math><semantics><mrow>{parts}</mrow>{source}</semantics></math>"


def words_of(text: str) -> list[tuple[str, str]]:
    """Returns the words of a formula, each with its kind."""
    return [(str(each.lastgroup), each[0]) for each in WORD.finditer(text)]


def row(words: list[tuple[str, str]]) -> str:
    """Returns the elements of some words, with fractions, and empties the list up to a `)`."""
    parts: list[str] = []
    while words and words[0][0] != "close":
        kind, word = words.pop(0)
        if kind == "sign" and word == "/" and divides(parts, words):
            above = parts.pop()
            spaces(words)
            below = atom(words)
            parts.append(f"<mfrac>{bare(above)}{bare(below)}</mfrac>")
        elif kind == "sign" and word == "^" and parts and words:
            base, minus = parts.pop(), atom(words) if words[0][1] == "-" else ""
            power = bare(atom(words)) if words else ""
            parts.append(f"<msup>{base}<mrow>{minus}{power}</mrow></msup>")
        else:
            words.insert(0, (kind, word))
            parts.append(atom(words))
            if kind == "space" and words and words[0][1] == "/":
                parts.pop()  # a fraction has no space before its line
    return "".join(parts)


def divides(parts: Sequence[str], words: Sequence[tuple[str, str]]) -> bool:
    """Returns whether a `/` is between two terms and not between words."""
    after = next((each for each in words if each[0] != "space"), ("", ""))
    number = after[0] in ("number", "open") or (after[0] == "name" and not is_prose(after[1]))
    return (
        number and bool(parts) and parts[-1].startswith(("<mi", "<mn", "<msu", "<mrow", "<mfrac"))
    )


def atom(words: list[tuple[str, str]]) -> str:
    """Takes the first word, or the function or parenthesis that begins there, as one element."""
    kind, word = words.pop(0)
    if kind == "gap":
        return '<mspace width="2em"/>'
    if kind == "space":
        return '<mspace width=".25em"/>'
    if kind == "number":
        return f"<mn>{word}</mn>"
    if kind == "open":
        inner = row(words)
        closing = words.pop(0)[1] if words else ""
        sign = "<mo>" if any(tag in inner for tag in TALL) else '<mo stretchy="false">'
        return f"<mrow>{sign}{word}</mo>{inner}{sign}{closing}</mo></mrow>"
    if kind == "name":
        element = name(word)
        if words and words[0] == ("open", "(") and not is_prose(word):
            argument = atom(words)
            if word == "sqrt":
                return f"<msqrt>{bare(argument)}</msqrt>"
            return f"<mrow>{element}{argument}</mrow>"
        if word == "log" and len(words) > 1 and words[1][0] == "name":  # log pi is one term
            return f"<mrow>{element}{atom(words)}{atom(words)}</mrow>"
        return element
    if kind == "ordinal":
        return f"<{PROSE}>{word}</{PROSE}>"
    return f"<mo>{escape(SIGNS.get(word, word))}</mo>"


def name(word: str) -> str:
    """Returns a name: a variable with its index, a function, an option, or a word."""
    base, _, index = word.partition("_")
    if is_prose(word):
        return f"<{PROSE}>{escape(word)}</{PROSE}>"
    if base in FUNCTIONS and (len(index) == 1 or not index):
        element = f'<mi mathvariant="normal">{base}</mi>'
    elif base in GREEK or is_letter(base):
        element = f"<mi>{GREEK.get(base, base)}</mi>"
    else:
        return f'<mi mathvariant="normal" class="option">{word}</mi>'
    if not index:
        return element
    inner = row(words_of(index.strip("{}").replace("_", " ")))
    return f"<msub>{element}<mrow>{inner}</mrow></msub>"


def is_letter(word: str) -> bool:
    return re.fullmatch(r"[A-Za-z]\d?", word) is not None


def is_prose(word: str) -> bool:
    """Returns whether a name is a word of the language."""
    base, _, index = word.partition("_")
    known = base in GREEK or base in FUNCTIONS or (is_letter(base) and base != "a")
    return not known and not index


def bare(element: str) -> str:
    """Returns an element without its parentheses, which a fraction does not need."""
    inner = re.fullmatch(r"<mrow><mo[^>]*>\(</mo>(.*)<mo[^>]*>\)</mo></mrow>", element)
    return element if inner is None else f"<mrow>{inner[1]}</mrow>"


def spaces(words: list[tuple[str, str]]) -> None:
    while words and words[0][0] == "space":
        words.pop(0)
