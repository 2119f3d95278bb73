"""Samples of several groups for the same prompts, to be read side by side.

Runs of one seed see the same prompts in the same steps, so their samples have equal ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rl4p.runs.sample import Sample
from rl4p.tools.comparison.runs import RunGroup

PROMPTS, GROUPS = 6, 12  # the most that are shown
LETTERS = 1500  # of a text

Key = tuple[int, str]  # step and id of the prompt


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The first response of a group to a prompt, with the index of the group."""

    group: int
    response: str
    reward: str


@dataclass(frozen=True, kw_only=True)
class SideBySide:
    """A prompt and the responses of at least two groups, sampled in the same step and seed."""

    seed: int
    step: int
    prompt: str
    reference: str
    answers: tuple[Answer, ...]


def side_by_side(groups: Sequence[RunGroup]) -> list[SideBySide]:
    """Returns prompts that groups have in common, from the first steps to the last ones."""
    groups = groups[:GROUPS]
    by_seed: dict[int, dict[int, dict[Key, Sample]]] = {}
    for index, group in enumerate(groups):
        for run in group.runs:
            first: dict[Key, Sample] = {}
            for sample in run.samples:
                first.setdefault((sample.step or 0, str(sample.id)), sample)
            if first:
                by_seed.setdefault(run.seed, {})[index] = first
    shared = {seed: samples for seed, samples in by_seed.items() if len(samples) > 1}
    if not shared:
        return []
    seed = max(shared, key=lambda seed: (len(shared[seed]), -seed))
    by_group = shared[seed]
    keys = sorted({key for samples in by_group.values() for key in samples})
    keys = [key for key in keys if sum(key in samples for samples in by_group.values()) > 1]
    return [
        SideBySide(
            seed=seed,
            step=key[0],
            prompt=shortened(present[0][1].prompt),
            reference=shortened(present[0][1].answer or ""),
            answers=tuple(
                Answer(
                    group=index,
                    response=shortened(sample.response),
                    reward="none" if sample.reward is None else f"{sample.reward:.3g}",
                )
                for index, sample in present
            ),
        )
        for key in _spread(keys)
        if (present := [(index, each[key]) for index, each in by_group.items() if key in each])
    ]


def shortened(text: str) -> str:
    """Returns a text as it may be written to a file, cut to `LETTERS`."""
    text = text.encode("utf-8", "replace").decode()  # a lone surrogate cannot be written
    rest = len(text) - LETTERS
    return (
        text if rest <= 0 else f"{text[:LETTERS]}\N{HORIZONTAL ELLIPSIS} ({rest} more characters)"
    )


def _spread(keys: Sequence[Key]) -> list[Key]:
    """Returns at most `PROMPTS` of the keys, evenly spread, with the first and the last one."""
    if len(keys) <= PROMPTS:
        return list(keys)
    last = len(keys) - 1
    return [keys[round(i * last / (PROMPTS - 1))] for i in range(PROMPTS)]
