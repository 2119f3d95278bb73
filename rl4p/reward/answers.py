"""Terms that grade the final answer of a response: numbers, mathematics, texts and puzzles."""

import logging
import math
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import ClassVar

from rl4p.base.types import Episode, Prompt
from rl4p.configuration.bounds import AboveZero, Positive, Share
from rl4p.data.countdown import solves
from rl4p.data.crossword import canonical, contains
from rl4p.data.extraction import (
    TAGS,
    Extraction,
    answer_of,
    same_answer,
    stated_answer,
    tagged_text,
)
from rl4p.data.fields import plain_list, whole_number
from rl4p.data.rush_hour_board import Board, Move, board_of, play, strict_moves, tolerant_moves
from rl4p.reward.workers import Failed, Workers

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ungradable:
    """A response without a grade."""

    reason: str  # why, to continue the words "the first because"


def with_nan(grades: Sequence[float | Ungradable | None], verb: str) -> list[float | None]:
    """Returns grades with nan for responses without one, and logs why they were not `verb`."""
    failed = [each.reason for each in grades if isinstance(each, Ungradable)]
    if failed:
        message = "%d of %d responses could not be %s, the first because %s."
        log.warning(message, len(failed), len(grades), verb, failed[0])
    return [math.nan if isinstance(each, Ungradable) else each for each in grades]


@dataclass(frozen=True, kw_only=True)
class Correct:
    r"""A grade of 1 if the final answer of the response equals the prompt's answer, else 0.

    `rl4p.data.quantity` lists which numbers are equal; other answers are compared as texts.

    Attributes:
      extract: where the final answer stands: `hashes` after the last ``####``, `boxed` in the last
        ``\boxed{}``, `answer` between the last ``<answer>`` and ``</answer>``, `number` the last
        number of the text, `stated` the number in the first of these places that has one, or in
        a sentence such as ``The answer is 12`` (`rl4p.data.extraction`). A list is tried in its
        order: [boxed, hashes]. Thoughts are left out.
    """

    reads_answer: ClassVar[bool] = True

    weight: float = 1.0
    extract: Extraction | tuple[Extraction, ...] = "hashes"

    def __post_init__(self) -> None:
        rules = self.extract
        if not isinstance(rules, str) and not (rules and len(set(rules)) == len(rules)):
            raise ValueError(
                f"extract={list(rules)} must name at least one place, and none twice: write "
                "hashes, or [boxed,hashes]."
            )

    def unasked(self, name: str, prompt: Prompt) -> str | None:
        """Returns a sentence about answers that are read after a mark that no prompt mentions."""
        messages = prompt.prompt_messages()
        if self.extract != "hashes" or any("####" in str(each["content"]) for each in messages):
            return None
        return (
            f"reward.terms.{name} reads the answer after ####, which the prompts do not ask for: "
            "set data.system_prompt, or choose reward=gsm8k, which reads a number in any format."
        )

    def __call__(self, episodes: Sequence[Episode]) -> Sequence[float]:
        return [
            float(same_answer(answer_of(episode, self.extract), episode.prompt.answer))
            for episode in episodes
        ]


FUNCTION = "rl4p.reward.equivalence:grade"


@dataclass(frozen=True, kw_only=True)
class Math:
    r"""A grade of 1 if the answer in the response equals the prompt's answer, else 0.

    The library math-verify compares them as mathematics: 1/2 and ``\frac{1}{2}`` and 0.5,
    ``2\sqrt{2}`` and ``\sqrt{8}``, {1,2} and {2,1}, 1,000 and 1000, ``5\text{ cm}`` and 5, 50% and
    both 0.5 and 50 are equal. Two plain numbers are compared exactly. Words are compared as words.
    A response without an answer gets 0, as does one whose answer is no mathematics.

    Worker processes compare, so that ``9^{9^9}`` cannot stop the run (`workers.py`). A response
    that takes too long or more than 1 GiB of memory is invalid, and costs a restart of its worker.

        pip install 'rl4p[math]'
        python -m rl4p.train term@reward.terms.correct=math ...

    Attributes:
      extract: where the answer is: ``boxed`` in the last ``\boxed{}``, ``hashes`` after the last
        ``####``, ``answer`` in the last ``<answer></answer>``; ``number`` is the last number.
      response_seconds: how long one response may take.
      workers: the number of worker processes.
      deadline: how long all responses of a batch may take, in seconds; None for no limit.
    """

    reads_answer: ClassVar[bool] = True

    weight: float = 1.0
    extract: Extraction = "boxed"
    response_seconds: AboveZero = 5.0
    workers: Positive = 2
    deadline: AboveZero | None = 600.0

    def __post_init__(self) -> None:
        if find_spec("math_verify") is None:
            raise ValueError(
                "the library math-verify is not installed: run pip install 'rl4p[math]'."
            )

    def open(self) -> "OpenMath":
        """Returns the term with its worker processes, which start with the first batch."""
        return OpenMath(self)

    def __call__(self, episodes: Sequence[Episode]) -> list[float]:
        with closing(self.open()) as live:
            return live(episodes)


class OpenMath:
    """A `Math` with worker processes."""

    def __init__(self, term: Math):
        self.extract: Extraction = term.extract
        self.workers = Workers(FUNCTION, count=term.workers, seconds=term.response_seconds)
        self.close = self.workers.close

    def __call__(self, episodes: Sequence[Episode]) -> list[float]:
        answers = [answer_of(each, self.extract) for each in episodes]
        rows = [row for row, answer in enumerate(answers) if answer is not None]
        results = self.workers.map(
            [{"answer": answers[row], "reference": episodes[row].prompt.answer} for row in rows]
        )
        self.workers.warn_once(results, "compared")
        grades = [0.0] * len(episodes)
        for row, result in zip(rows, results, strict=True):
            grades[row] = math.nan if isinstance(result, Failed) else float(result)
        return grades


@dataclass(frozen=True, kw_only=True)
class Countdown:
    """A grade of 1 if the final answer makes the target from exactly the given numbers.

    The answer is an expression such as ``(3+5)*2`` (`rl4p.data.countdown`). It has + - * / and
    parentheses, each number as often as it is given, and exact fractions in between; a text
    ``= 16`` after it has to be the target. The numbers and the target are the question's metadata
    (`numbers` or `nums`, and `target`), or come from the reference answer, if that is an
    expression. A question with neither, or with metadata that cannot be read, is invalid.

    Attributes:
      extract: where the answer stands (`rl4p.reward.answers`), without `number` and
        `stated`.
      partial: the grade of an expression of the right numbers with another value.
    """

    weight: float = 1.0
    extract: Extraction | tuple[Extraction, ...] = "hashes"
    partial: Share = 0.0

    def __post_init__(self) -> None:
        rules = (self.extract,) if isinstance(self.extract, str) else self.extract
        for rule in ("number", "stated"):
            if rule in rules:
                raise ValueError(
                    f"extract={rule} finds a number, but the answer is an expression: write "
                    "hashes, boxed or answer."
                )

    def __call__(self, episodes: Sequence[Episode]) -> list[float | None]:
        grades: list[float | Ungradable] = []
        for episode in episodes:
            prompt, text = episode.prompt, answer_of(episode, self.extract) or ""
            try:
                well_formed, right = solves(text, prompt.answer, prompt.metadata)
            except ValueError as error:
                grades.append(Ungradable(f"of the row {prompt.id}: {error}"))
            else:
                grades.append(1.0 if right else self.partial * well_formed)
        return with_nan(grades, "graded")


TAG, CONTAINED = 0.02, 0.25


@dataclass(frozen=True, kw_only=True)
class Crossword:
    """A grade of 1 if a response states the answer to its clue, else 0 or a part.

    The response states its answer between ``<answer>`` and ``</answer>`` (`stated_answer`). It is
    compared with the reference in the canonical form (`canonical`): Unicode NFKD, accents
    off, & as AND, then the letters A-Z alone, so that spaces, hyphens and case do not count.

        exact    = 1 if the two are equal, else 0
        tags     = how many of <think>, </think>, <answer>, </answer> occur in the response
        contains = 1 if whole words anywhere in the response are the reference, else 0

        shaped   = min(1, exact + 0.02 tags / 4 + 0.25 contains)

    A sample is invalid (nan) if its reference has no letters.

    Attributes:
      shaped: whether to give a part of the grade for less than the exact answer. A shaped grade is
        1 only for an exact answer, so it can also decide on the accuracy of an evaluation. The part
        for `contains` can be earned by guessing many words: 0.27 at the most.
    """

    reads_answer: ClassVar[bool] = True

    weight: float = 1.0
    shaped: bool = False

    def __call__(self, episodes: Sequence[Episode]) -> list[float | None]:
        return with_nan([self.grade(each) for each in episodes], "graded")

    def grade(self, episode: Episode) -> float | Ungradable:
        prompt = episode.prompt
        gold = canonical(prompt.answer)
        if not gold:
            return Ungradable(f"the answer {prompt.answer!r} of the row {prompt.id} has no letters")
        stated = stated_answer(episode)
        exact = float(stated is not None and canonical(stated) == gold)
        if not self.shaped:
            return exact
        tags = sum(tag in tagged_text(episode, TAGS) for tag in TAGS)
        text = re.sub(
            "|".join(TAGS), " ", episode.response
        )  # their names are no words of the answer
        return min(1.0, exact + TAG * tags / len(TAGS) + CONTAINED * contains(text, prompt.answer))


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

    reads_answer: ClassVar[bool] = True

    weight: float = 1.0
    shaped: bool = False
    alternatives: bool = False

    def __call__(self, episodes: Sequence[Episode]) -> list[float | None]:
        return with_nan([self.grade(episode) for episode in episodes], "graded")

    def grade(self, episode: Episode) -> float | Ungradable:
        prompt = episode.prompt
        text, size = prompt.metadata.get("board"), prompt.metadata.get("size")
        try:
            if text is not None and not isinstance(text, str):  # a list of rows
                rows = plain_list(text) or [None]
                if not all(isinstance(each, str) for each in rows):
                    raise ValueError("its board is neither a text nor a list of texts")
                text = "".join(map(str, rows))
            size = None if size is None else whole_number(size)
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
        if not self.shaped:
            return 0.0
        agreed = next(
            (i for i, (a, b) in enumerate(zip(moves, gold, strict=False)) if a != b),
            min(len(moves), len(gold)),
        )
        solve = min(1.0, len(gold) / len(moves)) if last.solved else 0.0
        first_h, last_h = (each.to_exit + each.blockers for each in (board, last))
        heuristic = max(0.0, 1.0 - last_h / first_h)
        return SOLVE * solve + PREFIX * agreed / len(moves) + HEURISTIC * heuristic


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
