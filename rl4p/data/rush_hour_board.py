"""Boards of Rush Hour: pieces that slide along their own line, and the search for solutions.

A board is written row by row as N x N characters: ``o`` is an empty cell, ``x`` a wall, and a
capital letter belongs to the piece of that name. A piece covers at least two cells of one row or
column and slides along it, through empty cells only. The board is solved when the horizontal piece
A touches the right edge, where the exit is. One move slides one piece by any number of cells.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import isqrt
from string import ascii_uppercase
from typing import NamedTuple

DIRECTIONS = "<>^v"
MOST_DIGITS = 3  # a longer number is no distance on any board, and could be slow to read

# What stands for a direction in the answer of a policy, in lower case.
WORDS = {
    word: direction
    for words in ("< > ^ v", "← → ↑ ↓", "l r u d", "left right up down")
    for word, direction in zip(words.split(), DIRECTIONS, strict=True)
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
    moves, between, end = list[Move](), list[str](), 0
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


EMPTY, WALL, TARGET = "o", "x", "A"
POSITION_BITS = 3  # a piece has less than 8 positions on a board of at most 8 x 8
LARGEST = 8


class Piece(NamedTuple):
    """A piece: the row (or column) that it moves in, its first cell there, and its length."""

    name: str
    horizontal: bool
    line: int
    start: int
    length: int


@dataclass(frozen=True, kw_only=True)
class Board:
    """A position of the pieces."""

    size: int
    pieces: tuple[Piece, ...]  # the pieces in the order of their names, A first
    walls: frozenset[int] = frozenset()  # the cells with a wall, as row x N + column

    def __str__(self) -> str:
        cells = [EMPTY] * self.size**2
        for cell in self.walls:
            cells[cell] = WALL
        for piece in self.pieces:
            for cell in cells_of(piece, self.size):
                cells[cell] = piece.name
        return "".join(cells)

    @property
    def solved(self) -> bool:
        return self.to_exit == 0

    @property
    def to_exit(self) -> int:
        """The number of cells between A and the right edge."""
        target = self.pieces[0]
        return self.size - target.start - target.length

    @property
    def blockers(self) -> int:
        """The number of pieces and walls on the cells between A and the right edge."""
        text, target = str(self), self.pieces[0]
        row = text[target.line * self.size : (target.line + 1) * self.size]
        way = row[target.start + target.length :].replace(EMPTY, "")
        return len(set(way) - {WALL}) + way.count(WALL)

    def after(self, move: Move) -> "Board | None":
        """Returns the board after a move, or None if its piece cannot make it."""
        index = next((i for i, each in enumerate(self.pieces) if each.name == move.piece), None)
        if index is None:
            return None
        piece = self.pieces[index]
        if piece.horizontal != (move.direction in "<>"):
            return None
        sign = -1 if move.direction in "<^" else 1
        slid = piece._replace(start=piece.start + sign * move.cells)
        if not 0 <= slid.start <= self.size - piece.length:
            return None
        first, last = sorted((piece.start, slid.start))
        swept = piece._replace(start=first, length=last - first + piece.length)
        text = str(self)
        if {text[cell] for cell in cells_of(swept, self.size)} - {EMPTY, piece.name}:
            return None
        return replace(self, pieces=(*self.pieces[:index], slid, *self.pieces[index + 1 :]))


def cells_of(piece: Piece, size: int) -> range:
    """Returns the cells of a piece, as row x size + column."""
    if piece.horizontal:
        first, step = piece.line * size + piece.start, 1
    else:
        first, step = piece.start * size + piece.line, size
    return range(first, first + step * piece.length, step)


def board_of(text: str, size: int | None = None) -> Board:
    """Returns the board that a text describes; spaces and line breaks are skipped.

    Raises:
      ValueError: the text is not a board; the message says why.
    """
    text = "".join(text.split())
    size = isqrt(len(text)) if size is None else size
    if not isinstance(size, int):  # of a file
        raise ValueError(f"the size {size!r} is not a whole number")
    if len(text) != size * size or not 2 <= size <= LARGEST:
        raise ValueError(
            f"a board of size {size} has {size * size} cells and a size from 2 to {LARGEST}, "
            f"but {text!r} has {len(text)} cells"
        )
    if unknown := set(text) - {*ascii_uppercase, EMPTY, WALL}:
        raise ValueError(f"a board has the letters A-Z, {EMPTY} and {WALL}, not {min(unknown)!r}")
    pieces: list[Piece] = []
    for name in sorted(set(text) - {EMPTY, WALL}):
        cells = [i for i, cell in enumerate(text) if cell == name]
        row, column = divmod(cells[0], size)
        across = Piece(name, True, row, column, len(cells))
        down = Piece(name, False, column, row, len(cells))
        piece = next((x for x in (across, down) if list(cells_of(x, size)) == cells), None)
        if piece is None or len(cells) == 1 or piece.start + len(cells) > size:
            raise ValueError(f"the cells of piece {name} are not two or more in one row or column")
        pieces.append(piece)
    if not pieces or pieces[0].name != TARGET or not pieces[0].horizontal:
        raise ValueError(f"the board {text} has no horizontal piece {TARGET}")
    walls = frozenset(i for i, cell in enumerate(text) if cell == WALL)
    return Board(size=size, pieces=tuple(pieces), walls=walls)


def play(board: Board, moves: Iterable[Move]) -> tuple[Board, int]:
    """Returns the last board, and the number of moves made.

    The game ends at the first move that cannot be made, and when the board is solved.
    """
    made = 0
    for move in moves:
        after = None if board.solved else board.after(move)
        if after is None:
            break
        board, made = after, made + 1
    return board, made


class StateSpace:
    """The states of a board as integers, for searches.

    The lowest N x N bits say which cells are covered. Above them, each piece has three bits with
    its position in its line, A first. A move is one exclusive or of precomputed bits.

    Attributes:
      pieces: for each piece the shift of its position, and, by its position, the runs to both
        sides: pairs (the next cell that has to be empty, the bits that change).
    """

    def __init__(self, board: Board):
        self.board = board
        size, cells = board.size, board.size**2
        self.shifts = [cells + POSITION_BITS * i for i in range(len(board.pieces))]
        self.mask = (1 << POSITION_BITS) - 1
        self.exit = size - board.pieces[0].length
        self.pieces = []
        self.start = sum(1 << cell for cell in board.walls)
        for piece, shift in zip(board.pieces, self.shifts, strict=True):
            own_runs = tuple(runs(piece, start, size, shift) for start in range(size))
            self.pieces.append((shift, own_runs))
            self.start += sum(1 << cell for cell in cells_of(piece, size))
            self.start |= piece.start << shift

    def neighbours(self, state: int) -> list[int]:
        """Returns the states after one move, in a fixed order."""
        states, mask = [], self.mask
        for shift, by_position in self.pieces:
            for run in by_position[state >> shift & mask]:
                for cell, flip in run:
                    if state & cell:
                        break
                    states.append(state ^ flip)
        return states

    def board_at(self, state: int) -> Board:
        pieces = tuple(
            piece._replace(start=state >> shift & self.mask)
            for piece, shift in zip(self.board.pieces, self.shifts, strict=True)
        )
        return replace(self.board, pieces=pieces)

    def move(self, before: int, after: int) -> Move:
        """Returns the move between two neighbours."""
        for piece, shift in zip(self.board.pieces, self.shifts, strict=True):
            cells = (after >> shift & self.mask) - (before >> shift & self.mask)
            if cells:
                back, forth = DIRECTIONS[:2] if piece.horizontal else DIRECTIONS[2:]
                return Move(piece.name, forth if cells > 0 else back, abs(cells))
        raise ValueError("the states are equal")


def runs(
    piece: Piece, start: int, size: int, shift: int
) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Returns the slides of a piece from `start` to either side, the shortest first."""
    places = range(size - piece.length + 1)
    if start not in places:
        return ()
    cells = [cells_of(piece._replace(start=at), size) for at in places]
    bits = [sum(1 << cell for cell in cells[at]) | at << shift for at in places]
    slides = [(1 << cells[to][0 if to < start else -1], bits[start] ^ bits[to]) for to in places]
    return tuple(slides[:start][::-1]), tuple(slides[start + 1 :])


def solve(board: Board) -> tuple[Move, ...] | None:
    """Returns a solution with the fewest moves, or None if there is none."""
    if board.solved:
        return ()
    space = StateSpace(board)
    pieces, target, mask, goal = space.pieces, space.shifts[0], space.mask, space.exit
    frontier = [space.start]
    parents = {space.start: space.start}
    while frontier:
        reached = []
        for state in frontier:
            for shift, by_position in pieces:  # `neighbours`, inlined: most of the time is here
                for run in by_position[state >> shift & mask]:
                    for cell, flip in run:
                        if state & cell:
                            break
                        after = state ^ flip
                        if after not in parents:
                            parents[after] = state
                            if after >> target & mask == goal:
                                return path(space, parents, after)
                            reached.append(after)
        frontier = reached
    return None


def path(space: StateSpace, parents: dict[int, int], state: int) -> tuple[Move, ...]:
    moves = []
    while parents[state] != state:
        moves.append(space.move(parents[state], state))
        state = parents[state]
    return tuple(reversed(moves))


def fewest_moves(space: StateSpace, most_states: int) -> dict[int, int]:
    """Returns the fewest moves to a solution, for every state that can be reached from the start.

    The dictionary is empty if there is no solution, or if more than `most_states` states exist.
    """
    start = space.start
    neighbours: dict[int, list[int]] = {}
    waiting = [start]
    seen = {start}
    while waiting:
        state = waiting.pop()
        neighbours[state] = near = space.neighbours(state)
        new = [each for each in near if each not in seen]
        seen.update(new)
        waiting += new
        if len(seen) > most_states:
            return {}
    # Every move can be undone, so the search goes outwards from the solved states.
    target, mask = space.shifts[0], space.mask
    frontier = [state for state in neighbours if state >> target & mask == space.exit]
    distances = dict.fromkeys(frontier, 0)
    moves = 0
    while frontier:
        moves += 1
        reached = []
        for state in frontier:
            for each in neighbours[state]:
                if each not in distances:
                    distances[each] = moves
                    reached.append(each)
        frontier = reached
    return distances
