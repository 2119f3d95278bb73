"""A game of guessing a number, for `environment=gymnasium` with `discrete=true`."""

from typing import Any

from rl4p.configuration.bounds import Positive


class Guess:
    """A number from 1 to `most`, which the seed chooses; each guess is answered by a direction.

    The answer repeats the guess, so that turns which begin with the same observation are alike.
    The reward is 1 for the right guess. The game ends then, or after `guesses` guesses.
    """

    def __init__(self, most: Positive = 7, guesses: Positive = 3) -> None:
        self.most, self.guesses = most, guesses
        self.number = self.left = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.number, self.left = (seed or 0) % self.most + 1, self.guesses
        return f"A number from 1 to {self.most}.", {}

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        if action == self.number:
            return "Right.", 1.0, True, False, {}
        direction = "Higher" if action < self.number else "Lower"
        return f"{direction} than {action}.", 0.0, False, self.left == 0, {}

    def close(self) -> None:
        pass
