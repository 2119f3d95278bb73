"""A synthetic task: how often a letter occurs in a word."""

from dataclasses import dataclass

import numpy as np

from rl4p.base.types import Question
from rl4p.configuration.bounds import Positive, Share
from rl4p.data.random_questions import RandomQuestions


@dataclass(frozen=True, kw_only=True)
class LetterCounting(RandomQuestions):
    """A data set of questions such as `r in strawberry`, answered by a number.

    The words are random letters, so every model meets them for the first time. The letter is drawn
    first, and then each character of the word is that letter with probability `share`, so that
    large counts occur. The reward term `correct` grades the answers. No question occurs twice.
    `RandomQuestions` explains the other options.

    A worked solution spells the word and counts on behind each occurrence:
    `straw` with `a` is `s t r a1 w #### 1`.

    Attributes:
      shortest, longest: the limits of the number of letters of a word.
      letters: the letters of the words.
      share: the probability that a character is the letter in question.
    """

    shortest: Positive = 4
    longest: Positive = 9
    letters: str = "abcdefghijklmnopqrstuvwxyz"
    share: Share = 0.3

    def __post_init__(self) -> None:
        if self.shortest > self.longest:
            raise ValueError(
                f"shortest={self.shortest} is more than longest={self.longest}: write a smaller one"
                " for shortest."
            )
        if not (self.letters.isalpha() and len(set(self.letters)) == len(self.letters) >= 2):
            raise ValueError(
                f"letters={self.letters!r} must be at least two different letters: write abc."
            )

    def draw(self, random: np.random.Generator) -> Question:
        letters = list(self.letters)
        letter = str(random.choice(letters))
        length = int(random.integers(self.shortest, self.longest + 1))
        drawn, chosen = random.choice(letters, length), random.random(length) < self.share
        word = "".join(letter if own else str(x) for x, own in zip(drawn, chosen, strict=True))
        return counting(letter, word)


def counting(letter: str, word: str) -> Question:
    """Returns the question how often a letter occurs in a word."""
    spelled, count = [], 0
    for character in word:
        count += character == letter
        spelled.append(f"{character}{count}" if character == letter else character)
    question = f"{letter} in {word}"
    return Question(
        id=f"letter_counting/{question}",
        question=question,
        answer=str(count),
        task="letter_counting",
        solution=f"{' '.join(spelled)} #### {count}",
    )
