"""A mixture of data sets, whose tasks share each batch."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import floor
from typing import Annotated, Any, ClassVar

from annotated_types import Gt

from rl4p.base.errors import InputError
from rl4p.base.types import Question
from rl4p.configuration.bounds import FINITE
from rl4p.data.prompts import prompted

log = logging.getLogger(__name__)

Weight = Annotated[float, Gt(0), FINITE]


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Several data sets, in which each set i has the share w_i / sum(w) of the training questions.

    An epoch has every question at least once. Let n_i be the number of questions of set i, and
    s = max over i of n_i / w_i. The epoch then has r_i = floor(s w_i + 1/2) questions of set i:
    each of them floor(r_i / n_i) times, and the first r_i mod n_i of them once more. The source
    shuffles the epoch: chance mixes the tasks of a step, in these proportions on average.

    The questions of the set NAME get the task NAME, unless the set has several tasks. Each question
    keeps the system prompt of its set. Evaluation reports each task.

    A training question that another set holds out is left out and counted.

    Attributes:
      sets: data sets by name.
      weights: w_i by name, 1 for a set without one.
    """

    system_prompt: ClassVar[None] = None  # the questions have those of their sets

    sets: Mapping[str, Any]
    weights: Mapping[str, Weight] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.sets:
            raise ValueError("sets is empty: add a data set with +data@data.sets.NAME=OPTION.")
        for name in self.weights:
            if name not in self.sets:
                raise ValueError(
                    f"weights.{name} names no data set: the sets are {', '.join(self.sets)}."
                )

    def train(self) -> Sequence[Question]:
        """Returns the questions of an epoch; repeated questions are the same objects."""
        held_out = set(map(content_of, self.held_out()))
        by_set = {}
        for name, questions in self.questions("train").items():
            by_set[name] = [q for q in questions if content_of(q) not in held_out]
            if left_out := len(questions) - len(by_set[name]):
                log.warning(
                    "data.sets.%s: %d questions left out, because they are held out.",
                    name,
                    left_out,
                )
            if not by_set[name]:
                raise InputError(f"data.sets.{name} has no training questions.")
        weights = {name: float(self.weights.get(name, 1.0)) for name in by_set}
        scale = max(len(by_set[name]) / weights[name] for name in by_set)
        epoch = []
        for name, questions in by_set.items():
            copies, more = divmod(floor(scale * weights[name] + 0.5), len(questions))
            epoch += [*questions * copies, *questions[:more]]
        return epoch

    def held_out(self) -> Sequence[Question]:
        return [q for questions in self.questions("held_out").values() for q in questions]

    def questions(self, split: str) -> Mapping[str, list[Question]]:
        """Returns the questions of each set, with the name of the set in their tasks and ids."""
        by_set, owners = {}, {}
        for name in sorted(self.sets):  # so that the order of the configuration does not matter
            data = self.sets[name]
            try:
                questions = prompted(data, getattr(data, split)(), f"data.sets.{name}")
            except InputError as error:
                raise InputError(f"data.sets.{name}: {error}") from None
            several = len({question.task for question in questions}) > 1
            by_set[name] = [
                replace(
                    question,
                    id=f"{name}/{question.id}",
                    task=question.task if several else name,
                    system_prompt=(
                        data.system_prompt
                        if question.system_prompt is None
                        else question.system_prompt
                    ),
                )
                for question in questions
            ]
            for task in sorted({question.task for question in by_set[name]}):
                if owners.setdefault(task, name) != name:
                    raise InputError(
                        f"data.sets.{name} and data.sets.{owners[task]} have a task of the same "
                        f"name, {task}: rename a set."
                    )
        return by_set


def content_of(question: Question) -> str:
    """Returns a key that equal questions of different sets share.

    The metadata is a part of it, because some tasks have the same text in every question.
    """
    bare = replace(question, system_prompt=None)  # that of its set
    messages = question.messages and bare.prompt_messages()
    content = [question.question, messages, question.tools, dict(question.metadata)]
    return json.dumps(content, sort_keys=True, default=str)
