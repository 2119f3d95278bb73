"""The notation of Rush Hour moves, such as ``Bv2,A>1``: B goes two cells down, A one to the right.

A move is a piece (one capital letter), a direction (``< > ^ v``) and a number of cells. Reference
answers are read strictly. The answers of a policy are read tolerantly, because a grader is to judge
the moves and not their punctuation.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

DIRECTIONS = "<>^v"
MOST_DIGITS = 3  # a longer number is no distance on any board, and could be slow to read

# What stands for a direction in the answer of a policy, in lower case.
WORDS = {
    "<": "<",
    ">": ">",
    "^": "^",
    "v": "v",
    "←": "<",
    "→": ">",
    "↑": "^",
    "↓": "v",
    "l": "<",
    "r": ">",
    "u": "^",
    "d": "v",
    "left": "<",
    "right": ">",
    "up": "^",
    "down": "v",
}
STRICT = re.compile(rf"([A-Z])([{DIRECTIONS}])([0-9]{{1,{MOST_DIGITS}}})")
# The longest word first: "Bdown2" is no "Bd" with something after it. Possessive quantifiers (*+)
# keep the time linear in the length of a hostile text.
TOLERANT = re.compile(
    r"(?<![A-Za-z])([A-Z])[\s:-]*+((?i:"
    + "|".join(sorted(map(re.escape, WORDS), key=len, reverse=True))
    + rf"))[\s:]*+([0-9]{{1,{MOST_DIGITS}}})(?![0-9])"
)
# 1. and 2) before the moves of a list, and -> between them
SEPARATORS = re.compile(r"(?:^|(?<=\s))[0-9]{1,3}[.)](?=\s)|[-=]>")
LEFT_OVER = re.compile(r"[A-Z0-9<>^←→↑↓]")  # what no separator contains


class Move(NamedTuple):
    """A slide of one piece by a number of cells."""

    piece: str
    direction: str
    cells: int

    def __str__(self) -> str:
        return f"{self.piece}{self.direction}{self.cells}"


def written(moves: Sequence[Move]) -> str:
    """Returns the moves in the strict notation."""
    return ",".join(map(str, moves))


def merged(moves: Sequence[Move]) -> tuple[Move, ...]:
    """Returns the moves with consecutive moves of one piece in one direction added up.

    A player counts such moves as one. Moves in opposite directions are kept as they are.
    """
    result: list[Move] = []
    for move in moves:
        if result and result[-1][:2] == move[:2]:
            result[-1] = move._replace(cells=result[-1].cells + move.cells)
        else:
            result.append(move)
    return tuple(result)


def strict_moves(text: str) -> tuple[Move, ...] | None:
    """Returns the merged moves of a reference answer, ``[A-Z][<>^v][0-9]+`` with commas, or None.

    None stands for a text that is anything else, even with a space in it, and for a move by 0.
    """
    matches = [STRICT.fullmatch(part) for part in text.split(",")]
    moves = [Move(m[1], m[2], int(m[3])) for m in matches if m is not None]
    if len(moves) < len(matches) or not all(move.cells for move in moves):
        return None
    return merged(moves)


def tolerant_moves(text: str) -> tuple[Move, ...] | None:
    """Returns the merged moves of a policy's answer, or None if it is not a list of moves.

    A direction may also be U, D, L, R, an arrow or a word (`WORDS`). Spaces, a colon, or a dash
    after the piece may stand within a move. Moves are separated by any text without capitals,
    digits and arrows, by ``->``, or by nothing; the numbering of a list is skipped. A text with
    more in it is not a list of moves: a grader would otherwise pick moves out of a sentence.
    """
    moves: list[Move] = []
    end = 0
    between: list[str] = []
    for match in TOLERANT.finditer(text):
        between.append(text[end : match.start()])
        moves.append(Move(match[1], WORDS[match[2].lower()], int(match[3])))
        end = match.end()
    between.append(text[end:])
    if not moves or not all(move.cells for move in moves):
        return None
    if any(LEFT_OVER.search(SEPARATORS.sub(" ", part)) for part in between):
        return None
    return merged(moves)
