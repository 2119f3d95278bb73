r"""The last box of a text, read as TeX reads the argument of ``\boxed``."""

import re
from dataclasses import dataclass

BOX = r"\\(?:boxed|fbox)(?![a-zA-Z])"
LINE = 200  # characters of a comment at most, so that a line of percent signs is read at once
SCAN = re.compile(rf"{BOX}|\\(?!{BOX}).|[{{}}]|%", re.DOTALL)
COMMENT = re.compile(rf"%[^\n]{{0,{LINE}}}+(?:\n|\Z)")
# What TeX skips before an argument: spaces, comments, and the end of a line, but no empty line.
SKIPPED = re.compile(rf"(?:[^\S\n]|{COMMENT.pattern}|\n(?![^\S\n]*\n))*")
MACRO = re.compile(r"\\(?:[a-zA-Z]+|.)", re.DOTALL)
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
EMPTY_LINE = re.compile(r"\n[^\S\n]*\n")
# The macros that are common in a box without braces, with the number of their arguments.
ARGUMENTS: dict[str, int] = dict.fromkeys(
    ("frac", "dfrac", "tfrac", "cfrac", "binom", "dbinom", "tbinom"), 2
)
ARGUMENTS |= dict.fromkeys(
    ("sqrt", "text", "textbf", "textit", "mathrm", "mathbf", "mbox", "overline", "bar", "vec"), 1
)
DEEPEST = 8  # macros as arguments of macros


@dataclass(kw_only=True)
class Box:
    """A box while its text is read."""

    start: int  # of the macro
    begin: int  # of its argument, which is a group in braces or one token
    braces: bool
    end: int | None = None  # of the group
    around: "Box | None" = None  # the outermost box that is open at its start
    dropped: list[tuple[int, int]]  # the ranges in it that are no part of its content


def boxed(text: str) -> str | None:
    r"""Returns the content of the last ``\boxed`` or ``\fbox``; None if absent or malformed.

        7          of `\boxed{7}`, `\boxed {7}`, `\boxed 7` and `\boxed{\boxed{7}}`
        \frac12    of `\boxed\frac12`
        1          of `\boxed 12`, in whose frame TeX puts the 1 alone

    A box within a box belongs to the outer one. Braces are matched; ``\{`` and ``\}`` are
    characters of the answer, and a comment (from ``%`` to the end of the line) is not. A box that
    is never closed has no content, and an earlier box does not take its place.
    """
    first = re.search(BOX, text)
    if first is None:
        return None
    groups: list[Box | None] = []  # that are open, with their boxes
    begins: dict[int, Box] = {}  # the boxes by the places of their opening braces
    last = outer = None
    at = first.start()
    while match := SCAN.search(text, at):
        at, token = match.end(), match[0]
        if token == "{":
            box = begins.get(match.start())
            groups.append(box)
            if box is not None:
                outer = outer or box
        elif token == "}":
            box = groups.pop() if groups else None
            if box is not None:
                box.end = match.start()
                outer = None if box is outer else outer
                if box.around is not None:  # the frame within a frame
                    box.around.dropped += [(box.start, box.begin + 1), (box.end, box.end + 1)]
        elif token == "%":
            comment = COMMENT.match(text, match.start())
            if comment is not None and is_comment(text, comment, inside=bool(groups)):
                at = comment.end()
                if outer is not None:
                    outer.dropped.append(comment.span())
        elif "box" in token:
            start = skipped(text, at)
            last = Box(
                start=match.start(), begin=start, braces=text[start : start + 1] == "{",
                around=outer, dropped=[],
            )  # fmt: skip
            if last.braces:
                begins[start] = last
            elif outer is not None:
                outer.dropped.append((last.start, start))
            at = start
    return None if last is None else content(text, last)


def is_comment(text: str, comment: re.Match[str], *, inside: bool) -> bool:
    """Returns whether a percent sign begins a comment, and is no unit, as in ``{50% of it}``.

    Args:
      inside: whether a group is open; outside, only a whole line is a comment.
    """
    start = comment.start()
    if not inside:
        line = text[max(0, start - LINE) : start].rpartition("\n")
        return not line[2].strip() and (bool(line[1]) or start <= LINE)
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", comment[0]):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            return False
    return comment[0].endswith("\n")


def content(text: str, box: Box) -> str | None:
    """Returns the content of the last box, or of the box around it."""
    around = box.around
    if around is not None:
        if around.end is not None:
            box = around
        elif not EMPTY_LINE.search(text, around.start, box.start):  # not a slip of long ago
            return None
    if not box.braces:
        end = argument_end(text, box.begin)
        return None if end is None else text[box.begin : end].strip()
    if box.end is None:
        return None
    parts, at = [], box.begin + 1
    for start, end in sorted(box.dropped):
        parts.append(text[at:start])
        at = max(at, end)
    return " ".join([*parts, text[at : box.end]]).strip()


def skipped(text: str, at: int) -> int:
    match = SKIPPED.match(text, at)
    return at if match is None else match.end()


def argument_end(text: str, at: int, depth: int = DEEPEST) -> int | None:
    """Returns where the argument that begins at a place ends; None if there is no argument."""
    if text[at : at + 1] in ("", "}", "$", "#", "&", "%", "\n") or not depth:
        return None
    if text[at] == "{":  # the index after the brace that closes the group
        level = 0
        for match in BRACE.finditer(text, at):
            level += {"{": 1, "}": -1}.get(match[0], 0)
            if level == 0:
                return match.end()
        return None
    if (macro := MACRO.match(text, at)) is None:
        return at + 1
    end, name = macro.end(), macro[0][1:]
    if name == "sqrt" and text[end : end + 1] == "[":
        end = text.find("]", end) + 1
    count = ARGUMENTS.get(name)
    while end and (text[end : end + 1] == "{" if count is None else count):
        end = argument_end(text, skipped(text, end), depth - 1)
        count = None if count is None else count - 1
    return end or None
