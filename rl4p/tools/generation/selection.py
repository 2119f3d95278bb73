"""The choice of the responses to keep."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rl4p.base.errors import InputError
from rl4p.base.types import Question
from rl4p.runs.grading import text_reward
from rl4p.runs.sample import Sample, Status
from rl4p.tools.generation.options import GenerateOptions

TOTAL = "reward"  # the name of the total reward


def demonstration(sample: Sample, question: Question) -> dict[str, Any]:
    """Returns the line of a kept response, as `data=jsonl` reads it."""
    messages = replace(question, system_prompt=None).prompt_messages()
    conversation = {} if question.messages is None else {"messages": messages}
    return conversation | {
        "question": sample.prompt,
        "answer": sample.response,
        "reference": sample.answer,
        "id": sample.id,
        "task": sample.task,
        "sample": sample.sample,
        "reward": sample.reward,
        "terms": dict(sample.terms),
    }


def check_reward(reward: Any, options: GenerateOptions) -> None:
    """Refuses a reward that cannot grade texts, and a term that it does not have."""
    text_reward(reward, otherwise=", or grade=false")
    if options.keep not in (None, TOTAL, *reward.terms):
        raise InputError(
            f"keep={options.keep} is not a term of the reward; its terms are "
            f"{', '.join(reward.terms)}, and {TOTAL} is their total."
        )


def kept(
    samples: Sequence[Sample], options: GenerateOptions
) -> tuple[list[Sample], dict[str, int]]:
    """Chooses responses to learn from, in their order.

    A response that did not end by itself is never kept, because an answer that is cut would be
    taught as a whole one; neither is an empty one. Of equal rewards the first sample counts as
    better.

    Returns:
      The kept responses, and how many were left out for which reason.
    """
    left_out: Counter[str] = Counter()
    by_prompt: dict[str | None, list[Sample]] = defaultdict(list)
    for sample in samples:
        if reason := refusal(sample, options):
            left_out[reason] += 1
        else:
            by_prompt[sample.id].append(sample)
    chosen: set[int] = set()
    for mine in by_prompt.values():
        best = sorted(mine, key=lambda sample: -(sample.reward or 0.0)) if options.best else mine
        best = best[: options.best]
        left_out["beyond the best"] += len(mine) - len(best)
        chosen |= set(map(id, best))
    return [sample for sample in samples if id(sample) in chosen], dict(+left_out)


def refusal(sample: Sample, options: GenerateOptions) -> str | None:
    """Returns why a response is not kept, or None."""
    if sample.status is not Status.COMPLETED:
        return "not finished"
    if not sample.response.strip():
        return "empty"
    if options.keep is None and options.best is None:
        return None
    grade = sample.reward
    if grade is not None and options.keep not in (None, TOTAL):
        grade = sample.terms.get(options.keep)
    if grade is None:
        return "not graded"
    if options.keep is None:
        return None
    least = 1.0 if options.at_least is None else options.at_least
    # Grades have the precision of float32.
    reached = grade >= least or math.isclose(grade, least, rel_tol=1e-6)
    return None if reached else "below the least grade"
