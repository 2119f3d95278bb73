"""The grades of responses, and the choice of those to keep."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rl4p.data.prompts import system_of
from rl4p.errors import InputError
from rl4p.protocols.reward import TextReward
from rl4p.runs.responses.generation.options import Options
from rl4p.runs.responses.generation.responses import Response
from rl4p.runs.responses.grading import grade, text_reward
from rl4p.types import Episode, Finish, Prompt

TOTAL = "reward"  # the name of the total reward


@dataclass(frozen=True, kw_only=True)
class Graded:
    """A response with its grades.

    Attributes:
      reward: the total; None if it was not graded, or a term could not grade it.
      terms: the unweighted grades by name, without those that do not apply.
    """

    response: Response
    reward: float | None = None
    terms: Mapping[str, float]

    @property
    def row(self) -> dict[str, Any]:
        """Returns the line of FILE.responses.jsonl."""
        return self.response.row | {"reward": self.reward, "terms": dict(self.terms)}

    @property
    def demonstration(self) -> dict[str, Any]:
        """Returns the line of the kept responses, as `data=jsonl` reads it."""
        question = self.response.question
        asked = replace(question, system_prompt=None).prompt_messages()
        conversation = {} if question.messages is None else {"messages": asked}
        return conversation | {
            "question": question.question,
            "answer": self.response.text,
            "reference": question.answer,
            "id": question.id,
            "task": question.task,
            "sample": self.response.sample,
            "reward": self.reward,
            "terms": dict(self.terms),
        }


def check_reward(reward: Any, options: Options) -> None:
    """Refuses a reward that cannot grade texts, and a term that it does not have."""
    text_reward(reward, otherwise=", or grade=false")
    if options.keep not in (None, TOTAL, *reward.terms):
        raise InputError(
            f"keep={options.keep} is not a term of the reward; its terms are "
            f"{', '.join(reward.terms)}, and {TOTAL} is their total."
        )


def graded(
    responses: Sequence[Response], reward: TextReward | None, system_prompt: str | None
) -> list[Graded]:
    """Returns the responses with their grades; without a reward there are none."""
    if reward is None:
        return [Graded(response=response, terms={}) for response in responses]
    episodes = [episode(response, system_prompt) for response in responses]
    return [
        Graded(
            response=response,
            reward=grades.total,
            terms={name: x for name, x in grades.terms.items() if x is not None},
        )
        for response, grades in zip(responses, grade(reward, episodes), strict=True)
    ]


def episode(response: Response, system_prompt: str | None) -> Episode:
    """Returns the response as graders take it."""
    question = response.question
    if not isinstance(question, Prompt):  # for a server, which has the tokens
        system_prompt = system_of(question.prompt_messages(system_prompt))
        question = Prompt(**(vars(question) | {"tokens": (), "system_prompt": system_prompt}))
    finish = Finish[response.finish.upper()]
    return Episode(prompt=question, response=response.text, tokens=response.length, finish=finish)


def kept(rows: Sequence[Graded], options: Options) -> tuple[list[Graded], dict[str, int]]:
    """Chooses responses to learn from, in their order.

    A response that did not end by itself is never kept, because an answer that is cut would be
    taught as a whole one; neither is an empty one. Of equal rewards the first sample counts as
    better.

    Returns:
      The kept responses, and how many were left out for which reason.
    """
    left_out: Counter[str] = Counter()
    by_prompt: dict[str, list[Graded]] = defaultdict(list)
    for row in rows:
        if reason := refusal(row, options):
            left_out[reason] += 1
        else:
            by_prompt[row.response.question.id].append(row)
    chosen: set[int] = set()
    for mine in by_prompt.values():
        best = sorted(mine, key=lambda row: -(row.reward or 0.0)) if options.best else mine
        best = best[: options.best]
        left_out["beyond the best"] += len(mine) - len(best)
        chosen |= set(map(id, best))
    return [row for row in rows if id(row) in chosen], dict(+left_out)


def refusal(row: Graded, options: Options) -> str | None:
    """Returns why a response is not kept, or None."""
    if row.response.finish != "stop":
        return "not finished"
    if not row.response.text.strip():
        return "empty"
    if options.keep is None and options.best is None:
        return None
    grade = row.reward
    if grade is not None and options.keep not in (None, TOTAL):
        grade = row.terms.get(options.keep)
    if grade is None:
        return "not graded"
    if options.keep is None:
        return None
    least = 1.0 if options.at_least is None else options.at_least
    # Grades have the precision of float32.
    reached = grade >= least or math.isclose(grade, least, rel_tol=1e-6)
    return None if reached else "below the least grade"
