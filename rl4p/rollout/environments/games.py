"""Small games and tools of the package: a calculator, a number to guess, a grid, stones to take."""

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


class Nim:
    """Two players take one to three stones in turn; who takes the last one wins.

    An observation is `9 stones`, an action a number. The seed chooses a number of stones that 4
    does not divide, so that the first player can always win: by leaving a multiple of 4. The winner
    has the reward 1 and the loser -1. An action that is no possible number loses.

    The roles are `first` and `second`. With `opponent` the policy is the first player alone, and
    the game the second one, which makes no mistake.

    Args:
      most: the most stones at the beginning, from 5 on.
    """

    roles = ("first", "second")

    def __init__(self, most: Positive = 15, opponent: bool = False) -> None:
        self.opponent, self.left, self.player = opponent, 0, 0
        self.starts = [number for number in range(5, most + 1) if number % 4]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.left, self.player = self.starts[(seed or 0) % len(self.starts)], 0
        return self.answer()

    def answer(self) -> tuple[str, dict[str, Any]]:
        return f"{self.left} stones", {} if self.opponent else {"role": self.roles[self.player]}

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        possible = 1 <= action <= min(3, self.left)
        if possible:
            self.left -= action
        done, won = not possible or self.left == 0, possible
        if self.opponent and not done:
            self.left -= max(1, self.left % 4)
            done, won = self.left == 0, False
        self.player = 1 - self.player
        text, info = self.answer()
        reward = (1.0 if won else -1.0) if done else 0.0
        other = {"rewards": {self.roles[self.player]: -reward}} if done else {}
        return text, reward, done, False, info | other
