"""Tests the questions that come from an environment, and the games that begin with a seed."""

from dataclasses import dataclass
from itertools import count, islice

import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Question
from rl4p.configuration import compose, instantiate
from rl4p.data import environment
from rl4p.data.environment import SEED, EnvironmentQuestions
from rl4p.rollout.environments.gymnasium import Gymnasium
from tests.support.worlds import Letters

GAME = Gymnasium(factory=Letters)


def question(i, split="train"):
    return Question(
        id=f"{split}/{i}", question=f"{i}?", answer=str(i), task="own", metadata={"i": i}
    )


@dataclass(frozen=True)
class Own:
    """An environment with questions of its own."""

    size: int | None = 20
    held_out: int | None = None

    def questions(self):
        return map(question, count() if self.size is None else range(self.size))

    def held_out_questions(self):
        return None if self.held_out is None else (question(i, "test") for i in count())


def test_a_game_has_a_question_for_each_seed():
    data = EnvironmentQuestions(environment=GAME, train_size=3, held_out_size=2, seed=7)
    assert [row.metadata for row in data.train()] == [{SEED: 7}, {SEED: 8}, {SEED: 9}]
    assert [row.metadata for row in data.held_out()] == [{SEED: 10}, {SEED: 11}]
    assert [row.id for row in data.train()] == ["game/7", "game/8", "game/9"]
    assert {row.question for row in data.train()} == {""}
    assert len(EnvironmentQuestions(environment=GAME).train()) == 4096


def test_the_questions_of_an_environment_are_divided_by_their_ids():
    data, again = (EnvironmentQuestions(environment=Own(), held_out_size=5) for _ in range(2))
    train, held_out = data.train(), data.held_out()
    assert (train, held_out) == (again.train(), again.held_out())
    assert len(train) == 15
    assert len(held_out) == 5
    assert sorted(row.metadata["i"] for row in [*train, *held_out]) == list(range(20))
    assert [row.metadata["i"] for row in train] == sorted(row.metadata["i"] for row in train)
    assert [row.metadata["i"] for row in held_out] != list(range(5))


def test_an_endless_environment_gives_as_many_as_are_wanted(monkeypatch):
    data = EnvironmentQuestions(environment=Own(size=None), train_size=8, held_out_size=4)
    assert len(data.train()) == 8
    assert {row.metadata["i"] for row in [*data.train(), *data.held_out()]} == set(range(12))
    monkeypatch.setattr(environment, "MOST", 50)
    with pytest.raises(InputError, match=r"more than 50 questions: set data\.train_size\.$"):
        EnvironmentQuestions(environment=Own(size=None)).train()


def test_a_held_out_split_is_taken_as_it_is():
    data = EnvironmentQuestions(environment=Own(held_out=100), held_out_size=3, train_size=4)
    assert [row.id for row in data.held_out()] == ["test/0", "test/1", "test/2"]
    assert data.train() == list(islice(Own().questions(), 4))


def test_repeated_ids_count_once():
    class Repeats(Own):
        def questions(self):
            return [question(i % 4) for i in range(20)]

    data = EnvironmentQuestions(environment=Repeats(), held_out_size=1)
    assert len(data.train()) == 3


def test_what_leaves_no_question_or_has_no_effect_is_refused():
    with pytest.raises(InputError, match="held_out_size=256 holds out each of the 20 questions"):
        EnvironmentQuestions(environment=Own()).train()
    with pytest.raises(ValueError, match="seed=3 has no effect"):
        EnvironmentQuestions(environment=Own(), seed=3)
    with pytest.raises(ValueError, match="add rollout=environment or rollout=agent"):
        EnvironmentQuestions(environment=None)


WORLD = ("+environment@rollout.environment=gymnasium", "trusted_targets=tests")
WORLD += ("rollout.environment.factory._target_=tests.support.worlds.Letters",)


def test_the_configuration_names_the_environment_once():
    config = compose(["data=environment", "rollout=environment", *WORLD])
    assert isinstance(instantiate(config.data).environment, Gymnasium)
    agent = "rollout.agent._target_=tests.support.worlds.PlannerAndWorker"
    config = compose(["data=environment", "rollout=agent", agent, "trusted_targets=tests"])
    assert type(instantiate(config.data).environment).__name__ == "PlannerAndWorker"
    with pytest.raises(InputError, match="takes the questions of rollout"):
        instantiate(compose(["data=environment"]).data)
