"""Questions of the generators of the library reasoning_gym."""

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from rl4p.base.errors import InputError
from rl4p.base.types import Question
from rl4p.configuration.bounds import Natural, Positive
from rl4p.data.prompts import Prompting

OWN_OPTIONS = ("seed", "size")
# The generators of version 0.1.25 whose questions or reference answers, with their own options,
# depend on the order of a set of texts. Each process has another order.
BY_HASH = frozenset(
    {
        "intermediate_integration",
        "isomorphic_strings",
        "knight_swap",
        "polynomial_multiplication",
        "ransom_note",
        "word_ladder",
    }
)
# The generators that draw some questions from random numbers without a seed.
UNSEEDED = frozenset({"codeio", "list_functions"})


@dataclass(frozen=True, kw_only=True)
class ReasoningGym(Prompting):
    """A data set of one generator of reasoning_gym, such as `chain_sum` (2505.24760).

        pip install 'rl4p[reasoning-gym]'
        python -m rl4p.train data=reasoning_gym data.name=chain_sum +data.options.max_digits=2

    Question i of a generator depends on seed + i alone in most generators, so that neighbouring
    seeds have the same questions, one index apart. Held-out questions therefore have the same seed,
    and the indices after the training questions. Training leaves out questions whose text is held
    out too.

    A few generators make other questions or reference answers in each process, for the same seed
    (`BY_HASH`). They are refused unless the environment has a number as PYTHONHASHSEED. Worker
    processes inherit it:

        PYTHONHASHSEED=0 python -m rl4p.train data=reasoning_gym data.name=word_ladder

    The `metadata` reproduce the question: `name`, `seed`, `size`, `index` and `options`.
    `reward=reasoning_gym` makes it again, and takes the score of the library
    (`rl4p.reward.reasoning_gym`). `reward=weighted` compares the answer with the reference.

    Attributes:
      name: the name of the generator.
      train_size, held_out_size: the numbers of questions.
      seed: the seed of the generator, independent of the run's.
      options: options of the generator, such as the size of its numbers.
      task: the task name in the metrics; None is `name`.
    """

    name: str
    train_size: Positive = 4096
    held_out_size: Positive = 256
    seed: Natural = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    task: str | None = None

    def __post_init__(self) -> None:
        if find_spec("reasoning_gym") is None:
            raise ValueError(
                "the library reasoning_gym is not installed: run pip install 'rl4p[reasoning-gym]'."
            )
        for name in OWN_OPTIONS:
            if name in self.options:
                instead = "data.seed" if name == "seed" else "data.train_size"
                raise ValueError(f"options.{name} is set by rl4p: set {instead}.")
        for name, value in self.options.items():
            if name.endswith("_file") and not re.fullmatch(r"\w[\w.-]*", str(value)):
                raise ValueError(f"options.{name} must be the name of a file of reasoning_gym.")
        if self.name in UNSEEDED:
            raise ValueError(
                f"name={self.name}: this generator draws questions without a seed, so that no run "
                "can be repeated: choose another generator."
            )
        if self.name in BY_HASH and not os.environ.get("PYTHONHASHSEED", "").isdecimal():
            raise ValueError(
                f"name={self.name}: this generator makes other questions or answers in each "
                "process: set PYTHONHASHSEED=0 in the environment before Python starts."
            )

    @cached_property
    def questions(self) -> tuple[Question, ...]:
        """The training questions, and after them the held-out ones."""
        # Imported here, because it takes seconds and most runs do not need it.
        factory: Any = import_module("reasoning_gym.factory")
        if self.name not in factory.DATASETS:
            near = difflib.get_close_matches(self.name, factory.DATASETS, n=1)
            hint = f"; did you mean {near[0]}?" if near else "."
            raise InputError(f"data.name={self.name} is no generator of reasoning_gym{hint}")
        size, options = self.train_size + self.held_out_size, dict(self.options)
        try:
            data_set = factory.create_dataset(self.name, seed=self.seed, size=size, **options)
        except (AssertionError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise InputError(
                f"data.options={options}: {self.name} refuses them ({reason})."
            ) from error
        own = {"name": self.name, "seed": self.seed, "size": size}
        questions = []
        for index in range(size):
            entry = data_set[index]  # its own metadata may not be plain data
            question = Question(
                id=f"reasoning_gym/{self.name}/{self.seed + index}",
                question=entry["question"],
                answer="" if entry["answer"] is None else str(entry["answer"]),
                task=self.name if self.task is None else self.task,
                metadata={**own, "index": index, "options": dict(options)},
            )
            questions.append(question)
        return tuple(questions)

    def train(self) -> Sequence[Question]:
        held_out = {question.question for question in self.held_out()}
        questions = [q for q in self.questions[: self.train_size] if q.question not in held_out]
        if not questions:
            raise InputError(
                f"data.name={self.name} has no question that is not held out: set a smaller "
                "data.held_out_size, or data.options with more different questions."
            )
        return questions

    def held_out(self) -> Sequence[Question]:
        return self.questions[self.train_size :]
