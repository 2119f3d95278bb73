"""The grade of an expression that has to make a target from given numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

from rl4p.base.types import Episode
from rl4p.configuration.bounds import Share
from rl4p.data.countdown import solves
from rl4p.data.extraction import Extraction, answer_of
from rl4p.reward.ungradable import Ungradable, with_nan


@dataclass(frozen=True, kw_only=True)
class Countdown:
    """A grade of 1 if the final answer makes the target from exactly the given numbers.

    The answer is an expression such as ``(3+5)*2`` (`rl4p.data.countdown`). It has + - * / and
    parentheses, each number as often as it is given, and exact fractions in between; a text
    ``= 16`` after it has to be the target. The numbers and the target are the question's metadata
    (`numbers` or `nums`, and `target`), or come from the reference answer, if that is an
    expression. A question with neither, or with metadata that cannot be read, is invalid.

    Attributes:
      extract: where the answer stands (`rl4p.reward.correct`), without `number` and
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
        return with_nan([self.grade(episode) for episode in episodes], "graded")

    def grade(self, episode: Episode) -> float | Ungradable:
        prompt, text = episode.prompt, answer_of(episode, self.extract) or ""
        try:
            well_formed, right = solves(text, prompt.answer, prompt.metadata)
        except ValueError as error:
            return Ungradable(f"of the row {prompt.id}: {error}")
        return 1.0 if right else self.partial * well_formed
