"""Tests the guessing game."""

from rl4p.rollout.environments.guess import Guess


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
