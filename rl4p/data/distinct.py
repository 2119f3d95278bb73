"""Different random questions of a generator."""

from collections.abc import Callable

from rl4p.errors import InputError
from rl4p.types import Question

TRIES = 30  # draws for each requested question


def distinct(draw: Callable[[], Question | None], count: int) -> tuple[Question, ...]:
    """Returns `count` questions with different ids, in the order in which they were drawn first.

    Args:
      draw: returns a random question, or None if a draw made none.

    Raises:
      InputError: 30 draws for each question made too few different ones.
    """
    questions: dict[str, Question] = {}
    for _ in range(TRIES * count):
        question = draw()
        if question is not None:
            questions.setdefault(question.id, question)
        if len(questions) == count:
            return tuple(questions.values())
    raise InputError(
        f"data.train_size + data.held_out_size is {count}, but {TRIES * count} random draws made "
        f"only {len(questions)} different questions: set smaller sizes, or options of data that "
        "allow more questions."
    )
