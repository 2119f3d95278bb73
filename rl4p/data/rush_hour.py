"""Boards of Rush Hour, drawn at random by size and difficulty, with shortest solutions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from string import ascii_uppercase
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from rl4p.base.errors import InputError
from rl4p.base.types import Question
from rl4p.configuration.bounds import Natural, Positive
from rl4p.data.rush_hour_board import (
    TARGET,
    Board,
    Move,
    Piece,
    StateSpace,
    cells_of,
    fewest_moves,
    written,
)
from rl4p.data.synthetic import Synthetic

Size = Annotated[int, Ge(3), Le(6)]

MOST_STATES = 20_000  # a layout that can be arranged in more ways is left out: its search is slow
BOARDS_PER_LAYOUT = 8  # training boards that may have the same pieces in the same lines
PATIENCE = 1000  # layouts in a row that add no board, before the options count as impossible
LONG = 0.3  # the share of pieces of three cells; the others have two


@dataclass(frozen=True, kw_only=True)
class RushHour(Synthetic):
    """A data set of Rush Hour boards with `size` rows and columns (`rush_hour_board.py`).

    Each board has a solution; the reference answer is one with the fewest moves, which are counted
    after consecutive moves of a piece are merged. Pieces are named in the order of their first
    cells, so that equal boards have equal texts, and no board occurs twice.

    The data set has its own seed. No training board can be reached from a held-out board by moves.
    The held-out boards do not depend on `train_size`. `Synthetic` explains the other options.

    Attributes:
      size: the number of rows and of columns.
      least_moves, most_moves: the range of the fewest moves that solve a board. Boards of 4 x 4
        have up to about 7, random boards of 6 x 6 seldom over 15.
      walls: the number of cells that no piece can enter.
    """

    size: Size = 6
    least_moves: Positive = 2
    most_moves: Positive = 10
    walls: Natural = 0
    train_size: Positive = 1024
    held_out_size: Positive = 64

    def __post_init__(self) -> None:
        if self.least_moves > self.most_moves:
            raise ValueError(
                f"least_moves={self.least_moves} is more than most_moves={self.most_moves}: "
                "write the smaller number first."
            )
        if self.walls > self.size**2 // 4:
            raise ValueError(
                f"walls={self.walls} is more than a quarter of the {self.size**2} cells: set fewer."
            )

    @cached_property
    def questions(self) -> Sequence[Question]:
        """The held-out boards, one of each layout, and then the training boards."""
        random = np.random.Generator(np.random.Philox(self.seed))
        boards: dict[str, Question] = {}
        held_out: set[tuple] = set()
        fruitless = 0
        while len(boards) < self.held_out_size + self.train_size:
            training = len(boards) >= self.held_out_size
            board = layout(self.size, self.walls, random)
            before = len(boards)
            if (lines := signature(board)) not in held_out:
                wanted = BOARDS_PER_LAYOUT if training else 1
                for question in self.boards_of(board, wanted, random):
                    if len(boards) < self.held_out_size + self.train_size:
                        boards.setdefault(question.id, question)
            if len(boards) > before:
                fruitless = 0
                if not training:
                    held_out.add(lines)
            elif (fruitless := fruitless + 1) == PATIENCE:
                raise InputError(
                    f"Only {len(boards)} of data.held_out_size + data.train_size = "
                    f"{self.held_out_size + self.train_size} boards were found with data.size="
                    f"{self.size} and {self.least_moves} to {self.most_moves} moves: set smaller "
                    "sizes, or widen data.least_moves and data.most_moves."
                )
        return list(boards.values())

    def boards_of(self, board: Board, count: int, random: np.random.Generator) -> list[Question]:
        """Returns at most `count` boards that can be reached from `board`, of mixed difficulty."""
        space = StateSpace(board)
        distances = fewest_moves(space, MOST_STATES)
        by_moves: dict[int, list[int]] = {}
        for state, moves in distances.items():
            if self.least_moves <= moves <= self.most_moves:
                by_moves.setdefault(moves, []).append(state)
        questions = []
        for _ in range(count):
            if not by_moves:
                break
            moves = sorted(by_moves)[int(random.integers(len(by_moves)))]
            states = by_moves[moves]
            state = states.pop(int(random.integers(len(states))))
            if not states:
                del by_moves[moves]
            first, descent = space.board_at(state), []
            while distances[state]:
                after = next(s for s in space.neighbours(state) if distances[s] < distances[state])
                descent.append(space.move(state, after))
                state = after
            questions.append(question(first, descent))
        return questions


def layout(size: int, walls: int, random: np.random.Generator) -> Board:
    """Returns a board with pieces at random cells; it may have no solution."""
    # The order of the draws is part of the data set: equal seeds must keep their boards.
    row = int(random.integers(size))
    target = Piece(TARGET, True, row, int(random.integers(size - 2)), 2)
    pieces, taken = [target], set(cells_of(target, size))
    free = [cell for cell in range(size**2) if cell // size != row]  # A's row has no walls
    blocked = frozenset(int(cell) for cell in random.permutation(free)[:walls])
    taken |= blocked
    wanted = int(random.integers(size, 2 * size + 2))
    for _ in range(4 * wanted):
        length = 3 if size > 3 and random.random() < LONG else 2
        horizontal = bool(random.random() < 0.5)
        line, start = int(random.integers(size)), int(random.integers(size - length + 1))
        piece = Piece(ascii_uppercase[len(pieces)], horizontal, line, start, length)
        cells = set(cells_of(piece, size))
        if cells & taken or (horizontal and line == row):  # no other piece moves in A's row
            continue
        pieces.append(piece)
        taken |= cells
        if len(pieces) == wanted:
            break
    return Board(size=size, pieces=tuple(pieces), walls=blocked)


def signature(board: Board) -> tuple:
    """Returns the walls and the lengths of the pieces in each line, which no move changes."""
    pieces = sorted(board.pieces, key=lambda each: each[1:4])
    return tuple(sorted(board.walls)), tuple(
        (each.horizontal, each.line, each.length, each.name == TARGET) for each in pieces
    )


def question(board: Board, moves: Sequence[Move]) -> Question:
    """Returns a question about a board and its solution, with the pieces named in their order."""
    first = sorted(board.pieces[1:], key=lambda each: cells_of(each, board.size)[0])
    names = {TARGET: TARGET}
    names |= {each.name: name for each, name in zip(first, ascii_uppercase[1:], strict=False)}
    pieces = (each._replace(name=names[each.name]) for each in board.pieces)
    board = replace(board, pieces=tuple(sorted(pieces)))
    text, answer = str(board), written([each._replace(piece=names[each.piece]) for each in moves])
    rows = (text[i : i + board.size] for i in range(0, len(text), board.size))
    return Question(
        id=f"rush_hour/{text}",
        # Spaces keep tokenizers from merging neighbouring cells into one token.
        question="\n".join(" ".join(row) for row in rows),
        answer=answer,
        task="rush_hour",
        solution=f"<answer>{answer}</answer>",
        metadata={"board": text, "size": board.size, "moves": len(moves)},
    )
