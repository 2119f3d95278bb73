"""Questions that come from the environment of the rollout (`data=environment`)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from rl4p.base.errors import InputError
from rl4p.base.types import Question
from rl4p.configuration.bounds import Natural, Positive
from rl4p.data.prompts import Prompting
from rl4p.data.rows import digest

SEED = "environment_seed"  # of the metadata: the seed of all episodes of a question
GAMES = 4096  # that are trained on, if no number is given
MOST = 2**20  # questions that are taken, if no number is given


@runtime_checkable
class HasQuestions(Protocol):
    """An environment or an agent with questions of its own, whose ids differ.

    Both methods give the same questions in the same order each time. The metadata of a question are
    what the environment needs to begin its episode.
    """

    def questions(self) -> Iterable[Question]:
        """Returns the questions to train on, which may be endless."""
        ...

    def held_out_questions(self) -> Iterable[Question] | None:
        """Returns the questions of a held-out split; None if there is no such split."""
        ...


@dataclass(frozen=True, kw_only=True)
class EnvironmentQuestions(Prompting):
    """A data set whose questions come from the environment of the rollout, or from its agent.

        python -m rl4p.train data=environment rollout=environment \
            +environment@rollout.environment=textarena rollout.environment.factory.id=2048-v0

    An environment may have questions of its own (`HasQuestions`). If it has no held-out split, the
    questions with the smallest digests of their ids are held out.

    Any other environment is a game that begins with a seed. A question is a seed: the numbers from
    `seed` on are trained on, and the numbers after them are held out. All episodes of a question
    have its seed, in each step, evaluation and resumed run.

    Attributes:
      environment: the environment or the agent, with its options.
      train_size: the number of training questions; None takes all of an environment, and 4096 seeds
        of a game.
      held_out_size: the number of held-out questions, at most those of a held-out split.
      seed: the first seed of a game, independent of the run's.
      question: the text of the user before the first observation of a game.
      task: the task name of a game in the metrics.
    """

    environment: Any
    train_size: Positive | None = None
    held_out_size: Positive = 256
    seed: Natural = 0
    question: str = ""
    task: str = "game"

    def __post_init__(self) -> None:
        if self.environment is None:
            raise ValueError(
                "data=environment takes the questions of rollout.environment or rollout.agent: add "
                "rollout=environment or rollout=agent."
            )
        if isinstance(self.environment, HasQuestions):
            for option in fields(self):
                value = getattr(self, option.name)
                if option.name in ("seed", "question", "task") and value != option.default:
                    raise ValueError(
                        f"{option.name}={value} has no effect, because the environment has "
                        "questions of its own: leave it out."
                    )

    @cached_property
    def split(self) -> tuple[list[Question], list[Question]]:
        """The training questions, and the held-out ones."""
        if not isinstance(self.environment, HasQuestions):
            games = [self.game(self.seed + i) for i in range(self.games + self.held_out_size)]
            return games[: self.games], games[self.games :]
        separate, count = self.environment.held_out_questions(), self.train_size
        if separate is None:
            count = None if count is None else count + self.held_out_size
            rows = self.first_questions(count)
            held_out = sorted(rows, key=lambda row: digest(row.id))[: self.held_out_size]
        else:
            rows, held_out = self.first_questions(count), list(islice(separate, self.held_out_size))
        ids = {row.id for row in held_out}
        train = [row for row in rows if row.id not in ids]
        if not train:
            raise InputError(
                f"data.held_out_size={self.held_out_size} holds out each of the {len(rows)} "
                "questions of the environment: set a smaller value."
            )
        return train, held_out

    @property
    def games(self) -> int:
        """The number of training games."""
        return GAMES if self.train_size is None else self.train_size

    def game(self, seed: int) -> Question:
        """Returns the question of a seed."""
        return Question(
            id=f"{self.task}/{seed}",
            question=self.question,
            answer="",
            task=self.task,
            metadata={SEED: seed},
        )

    def first_questions(self, count: int | None) -> list[Question]:
        """Returns the first questions of the environment, without repeated ids.

        Args:
          count: the number of questions; None takes all of them.
        """
        questions: Iterator[Question] = iter(self.environment.questions())
        by_id: dict[str, Question] = {}
        for row in questions:
            by_id.setdefault(row.id, row)
            if len(by_id) == count:
                break
            if len(by_id) == MOST:
                raise InputError(
                    f"The environment has more than {MOST:,} questions: set data.train_size."
                )
        return list(by_id.values())

    def train(self) -> list[Question]:
        return self.split[0]

    def held_out(self) -> list[Question]:
        return self.split[1]
