"""Small games and tools of the package: a calculator, a number to guess, a grid to cross."""

from typing import Any

import numpy as np

from rl4p.configuration.bounds import Positive

MOVES = {"N": (0, 1), "S": (0, -1), "E": (1, 0), "W": (-1, 0)}


class Calculator:
    """The tools of a calculator; the reward is left to terms that grade the last message."""

    def add(self, a: int, b: int) -> str:
        """Adds two numbers.

        Args:
          a: the first number.
          b: the second number.
        """
        return str(a + b)


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


class Grid:
    """A walk from one square of a grid to another one, both chosen by the seed.

    An observation is `at X,Y to X,Y`, an action one of N, S, E and W. Other actions, and steps off
    the grid, change nothing. The reward is 1 on arrival. The walk ends then, or after `moves`
    actions; the shortest walk is never longer.
    """

    def __init__(self, size: Positive = 3, moves: Positive = 4) -> None:
        if moves < 2 * size - 2:
            raise ValueError(f"moves={moves} is less than the longest way, {2 * size - 2}.")
        self.size, self.moves, self.left = size, moves, 0
        self.place = self.goal = (0, 0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        squares = np.random.default_rng(seed).choice(self.size**2, 2, replace=False).tolist()
        self.place, self.goal = (divmod(square, self.size) for square in squares)
        self.left = self.moves
        return self.observation(), {}

    def observation(self) -> str:
        return f"at {self.place[0]},{self.place[1]} to {self.goal[0]},{self.goal[1]}"

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        moved = tuple(x + d for x, d in zip(self.place, MOVES.get(action, (0, 0)), strict=True))
        if all(0 <= x < self.size for x in moved):
            self.place = moved
        self.left -= 1
        arrived = self.place == self.goal
        return self.observation(), float(arrived), arrived, self.left == 0, {}
