"""The solution of a Rush Hour board."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rl4p.base.types import Episode
from rl4p.data.extraction import stated_answer
from rl4p.data.fields import plain_list, whole_number
from rl4p.data.rush_hour_board import Board, Move, board_of, play, strict_moves, tolerant_moves
from rl4p.reward.ungradable import Ungradable, with_nan

SOLVE, PREFIX, HEURISTIC = 0.20, 0.10, 0.05  # an exact answer has 0.65 and all of these: 1


@dataclass(frozen=True, kw_only=True)
class RushHour:
    """A grade of 1 if the moves of a response equal the reference answer's, else 0 or a part.

    The response states its moves between ``<answer>`` and ``</answer>`` (`stated_answer`), in any
    common notation (`tolerant_moves`). Consecutive moves of one piece in one direction count as one
    move, here and in the reference. Let p be the moves of the response and g the moves of the
    reference. The moves p are played on the board up to the first one that is not possible, or
    until A is at the exit; h(s) is the number of cells between A and the exit in state s, plus the
    number of pieces on them; s_0 is the first state and s_p the last one that p reaches. Then

        exact     = 1 if p = g, else 0
        solve     = min(1, |g| / |p|) if s_p is solved, else 0
        prefix    = (the number of first moves in which p and g agree) / |p|
        heuristic = max(0, 1 - h(s_p) / h(s_0))

        shaped    = 0.65 exact + 0.20 solve + 0.10 prefix + 0.05 heuristic

    A response without a list of moves gets 0. A sample is invalid (nan) if the row does not fit:
    its answer is not in the strict notation, or does not solve the board, or the board that a grade
    depends on is missing in the metadata (`board`, and optionally `size`).

    Attributes:
      shaped: whether to give a part of the grade for less than the exact answer. A shaped grade is
        1 only for an exact answer, so it can also decide on the accuracy of an evaluation.
      alternatives: whether another solution without more moves than the reference is exact as well
        (it then gets 1 in full). A board often has several shortest solutions.
    """

    weight: float = 1.0
    shaped: bool = False
    alternatives: bool = False

    def __call__(self, episodes: Sequence[Episode]) -> list[float | None]:
        return with_nan([self.grade(episode) for episode in episodes], "graded")

    def grade(self, episode: Episode) -> float | Ungradable:
        prompt = episode.prompt
        try:
            text, size = board_in(prompt.metadata)
        except ValueError as error:
            return Ungradable(f"of the row {prompt.id}: {error}")
        solution = reference(prompt.id, prompt.answer, text, size, self.shaped or self.alternatives)
        if isinstance(solution, Ungradable):
            return solution
        board, gold = solution
        stated = stated_answer(episode)
        moves = tolerant_moves(stated) if stated else None
        if moves is None:
            return 0.0
        if moves == gold:
            return 1.0
        if board is None:
            return 0.0
        last, made = play(board, moves)
        if self.alternatives and last.solved and made == len(moves) <= len(gold):
            return 1.0
        return partial_grade(board, last, moves, gold) if self.shaped else 0.0


def partial_grade(
    board: Board, last: Board, moves: tuple[Move, ...], gold: tuple[Move, ...]
) -> float:
    """Returns the shaped grade of an answer that is not exact and leads to the board `last`."""
    agreed = next(
        (i for i, (a, b) in enumerate(zip(moves, gold, strict=False)) if a != b),
        min(len(moves), len(gold)),
    )
    solve = min(1.0, len(gold) / len(moves)) if last.solved else 0.0
    heuristic = max(0.0, 1.0 - distance(last) / distance(board))
    return SOLVE * solve + PREFIX * agreed / len(moves) + HEURISTIC * heuristic


def distance(board: Board) -> int:
    """Returns the number of cells between A and the exit, plus the number of pieces on them."""
    return board.to_exit + board.blockers


def board_in(metadata: Mapping[str, Any]) -> tuple[str | None, int | None]:
    """Returns the text of the board and its size; None for what the metadata lacks.

    Raises:
      ValueError: they have other types.
    """
    rows, size = metadata.get("board"), metadata.get("size")
    if rows is not None and not isinstance(rows, str):  # a list of rows
        texts = plain_list(rows) or [None]
        if not all(isinstance(each, str) for each in texts):
            raise ValueError("its board is neither a text nor a list of texts")
        rows = "".join(map(str, texts))
    return rows, None if size is None else whole_number(size)


@lru_cache(maxsize=4096)
def reference(
    row: str, answer: str, text: str | None, size: int | None, board_needed: bool
) -> tuple[Board | None, tuple[Move, ...]] | Ungradable:
    """Returns the board, if there is one, and the moves of a row, if the row fits."""
    gold = strict_moves(answer)
    if gold is None:
        reason = f"the answer {answer!r} is not a list of moves such as Bv2,A>1"
        return Ungradable(f"of the row {row}: {reason}")
    if text is None:
        if board_needed:
            return Ungradable(f"the metadata of the row {row} has no board")
        return None, gold
    try:
        board = board_of(text, size)
    except ValueError as error:
        return Ungradable(f"of the row {row}: {error}")
    last, made = play(board, gold)
    if not last.solved or made != len(gold):
        reason = f"the answer {answer} does not solve the board {board}"
        return Ungradable(f"of the row {row}: {reason}")
    return board, gold
