"""Tests the calculator as a tool."""

import pytest

from rl4p.rollout.environments.games import Calculator, Grid, Guess, Nim
from rl4p.rollout.environments.tool_object import schema_of


def test_the_calculator_adds_and_has_a_schema():
    assert Calculator().add(17, 5) == "22"
    schema = schema_of(Calculator().add)["function"]
    assert schema["parameters"]["required"] == ["a", "b"]


def test_a_binary_search_always_guesses_the_number():
    for seed in range(7):
        game, low, high = Guess(), 1, 7
        assert game.reset(seed=seed)[0] == "A number from 1 to 7."
        while True:
            guess = (low + high) // 2
            observation, reward, done, cut, _ = game.step(guess)
            if done or cut:
                break
            higher = observation == f"Higher than {guess}."
            low, high = (guess + 1, high) if higher else (low, guess - 1)
        assert (observation, reward, done) == ("Right.", 1.0, True)


def test_wrong_guesses_end_the_game():
    game = Guess(most=7, guesses=2)
    game.reset(seed=0)
    assert game.step(7) == ("Lower than 7.", 0.0, False, False, {})
    assert game.step(2) == ("Lower than 2.", 0.0, False, True, {})


def test_the_straight_way_over_the_grid_arrives():
    starts = set()
    for seed in range(40):
        game = Grid()
        observation, _ = game.reset(seed=seed)
        assert game.reset(seed=seed)[0] == observation
        starts.add(observation)
        done = reward = 0
        while not done:
            place, goal = (
                tuple(map(int, part.split(","))) for part in observation[3:].split(" to ")
            )
            east, north = goal[0] - place[0], goal[1] - place[1]
            action = ("E" if east > 0 else "W") if east else ("N" if north > 0 else "S")
            observation, reward, done, cut, _ = game.step(action)
            assert done or not cut
        assert reward == 1.0
    assert len(starts) > 20


def test_steps_off_the_grid_and_nonsense_change_nothing():
    game = Grid(size=2, moves=3)
    game.reset(seed=0)
    game.place, game.goal = (0, 0), (1, 1)
    assert game.step("W")[0] == game.step("jump")[0] == "at 0,0 to 1,1"
    assert game.step("N") == ("at 0,1 to 1,1", 0.0, False, True, {})
    with pytest.raises(ValueError, match="moves=1 is less than the longest way, 2"):
        Grid(size=2, moves=1)


def test_two_players_take_stones_in_turn():
    game = Nim()
    starts = {game.reset(seed=seed)[0] for seed in range(20)}
    assert starts == {f"{number} stones" for number in (5, 6, 7, 9, 10, 11, 13, 14, 15)}
    assert game.reset(seed=1) == ("6 stones", {"role": "first"})
    assert game.step(2) == ("4 stones", 0.0, False, False, {"role": "second"})
    assert game.step(3) == ("1 stones", 0.0, False, False, {"role": "first"})
    end = {"role": "second", "rewards": {"second": -1.0}}
    assert game.step(1) == ("0 stones", 1.0, True, False, end)


@pytest.mark.parametrize("action", [0, 4, -1])
def test_a_number_that_is_not_possible_loses(action):
    game = Nim()
    game.reset(seed=1)
    end = {"role": "second", "rewards": {"second": 1.0}}
    assert game.step(action) == ("6 stones", -1.0, True, False, end)
    game = Nim(opponent=True)
    game.reset(seed=1)
    assert game.step(action)[1:3] == (-1.0, True)


def test_only_multiples_of_four_win_against_the_opponent():
    for seed in range(9):
        game = Nim(opponent=True)
        observation, info = game.reset(seed=seed)
        assert "role" not in info
        won = lost = done = False
        while not done:
            observation, reward, done, _, _ = game.step(int(observation.split()[0]) % 4)
            won = reward == 1.0
        assert won
        observation, _ = game.reset(seed=seed)
        done = False
        while not done:  # a mistake at first
            right = int(observation.split()[0]) % 4
            observation, reward, done, _, _ = game.step(right % 3 + 1 if not lost else right or 1)
            lost = True
        assert reward == -1.0
