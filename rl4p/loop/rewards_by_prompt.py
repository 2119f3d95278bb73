"""The rewards of a step, grouped by prompt."""

from collections.abc import Iterator, Sequence

import numpy as np

from rl4p.base.types import Episode, Prompt, Rewards


def rewards_by_prompt(
    episodes: Sequence[Episode], rewards: Rewards, term: str | None = None
) -> Iterator[tuple[Prompt, np.ndarray]]:
    """Yields each prompt with the rewards of its valid samples, in the order of the prompts.

    Args:
      rewards: on the host; row b belongs to episode b.
      term: the term to yield, where it applies; None for the total reward.
    """
    value_B = rewards.total_B if term is None else rewards.terms[term]
    counted_B = rewards.valid_B if term is None else rewards.graded(term)
    rows: dict[str, list[int]] = {}
    prompts: dict[str, Prompt] = {}
    for row, episode in enumerate(episodes):
        rows.setdefault(episode.prompt.id, []).append(row)
        prompts[episode.prompt.id] = episode.prompt
    for id, rows_of_prompt in rows.items():
        own = np.array(rows_of_prompt)
        yield prompts[id], np.asarray(value_B)[own[np.asarray(counted_B)[own]]]
