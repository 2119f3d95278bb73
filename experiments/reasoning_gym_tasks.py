"""Grades the reference, an empty and an unreadable answer of every generator of reasoning_gym.

    PYTHONHASHSEED=0 python experiments/reasoning_gym_tasks.py

A line has the name of a generator and the lowest grade of its references, and the highest of its
empty and of its unreadable answers, over the first questions; or why the generator is refused.
"""

import sys
from collections.abc import Sequence
from contextlib import closing
from importlib import import_module
from typing import Any

from rl4p.base.errors import InputError
from rl4p.base.types import Episode, Prompt, Question
from rl4p.data.reasoning_gym import ReasoningGym as Questions
from rl4p.reward.reasoning_gym import OpenReasoningGym, ReasoningGym
from rl4p.reward.sandbox import problem

COUNT = 4
UNREADABLE = ("I do not know", "?!", "nothing at all", "\u221e")


def main() -> int:
    """Prints the table; returns 1 if a grade is not what the heading of its column says."""
    names = sorted(import_module("reasoning_gym.factory").DATASETS)
    kind = "none" if problem("bubblewrap") else "bubblewrap"
    term, wrong, refused = ReasoningGym(sandbox=kind), [], []
    print(f"{'generator':32} reference  empty  unreadable  invalid")
    with closing(term.open()) as live:
        for name in names:
            try:
                questions = Questions(name=name, train_size=COUNT, held_out_size=1).train()
            except (InputError, ValueError) as error:
                refused.append(name)
                print(f"{name:32} refused: {error}")
                continue
            found = grades_of(live, questions)
            low, *high = min(found[0], default=None), max(found[1]), max(found[2])
            invalid = sum(grade != grade for grades in found for grade in grades)
            print(f"{name:32} {low!s:9}  {high[0]:5}  {high[1]:10}  {invalid:7}", flush=True)
            if low not in (1.0, None) or any(high) or invalid:
                wrong.append(name)
    print(f"{len(names)} generators, {len(refused)} refused, {len(wrong)} not as they should be:")
    print(", ".join(wrong) or "none")
    return bool(wrong)


def grades_of(live: OpenReasoningGym, questions: Sequence[Question]) -> list[list[Any]]:
    """Returns the grades of references, of empty answers and of unreadable ones."""
    prompts = [Prompt(**vars(question), tokens=()) for question in questions]
    answers = (
        [(prompt, prompt.answer) for prompt in prompts if prompt.answer],
        [(prompt, text) for prompt in prompts for text in ("", " ")],
        [(prompt, text) for prompt in prompts for text in UNREADABLE],
    )
    return [
        live([Episode(prompt=x, response=f"<answer>{text}</answer>") for x, text in part])
        for part in answers
    ]


if __name__ == "__main__":
    sys.exit(main())
