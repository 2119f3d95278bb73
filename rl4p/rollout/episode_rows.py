"""The trajectories of episodes: one row each, with the first context in the prompt columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rl4p.base.serialization import Serializable
from rl4p.base.types import Episode, Finish, Prompt, Trajectories, Turn
from rl4p.model.policy import Policy, padded_width
from rl4p.rollout.exact_conversation import Segment


@dataclass(kw_only=True)
class FinishedEpisode(Serializable):
    """An episode that grows while it runs.

    Attributes:
      segments: its tokens.
      turns: the messages of the policy, and what the environment answered to each.
      finish: the reason why it ended.
      failure: what the environment did wrong; None if nothing.
      engine: the address of the server that drew its last tokens.
      opening: the messages before the first response, if they are not the prompt's.
    """

    prompt: Prompt
    segments: list[Segment]
    turns: list[Turn] = field(default_factory=list)
    finish: Finish = Finish.LENGTH
    failure: str | None = None
    engine: str = ""
    opening: tuple[Mapping[str, Any], ...] | None = None

    @property
    def tokens(self) -> np.ndarray:
        """Returns the tokens that the policy chose: int32 [n]."""
        return self.chosen("tokens")

    @property
    def versions(self) -> np.ndarray:
        """Returns the weight version of each of these tokens: int32 [n]."""
        return self.chosen("versions")

    def chosen(self, name: str) -> np.ndarray:
        pairs = (zip(getattr(each, name), each.chosen, strict=True) for each in self.segments)
        return np.array([value for pair in pairs for value, own in pair if own], np.int32)

    def in_words(self) -> Episode:
        """Returns the episode as graders and hooks take it."""
        return Episode(
            prompt=self.prompt,
            response=self.turns[-1].text if self.turns else "",
            tokens=sum(turn.tokens for turn in self.turns),
            finish=self.finish,
            engine=self.engine,
            turns=tuple(self.turns),
            failure=self.failure,
            opening=self.opening,
        )


def rows_on_host(
    policy: Policy, episodes: Sequence[FinishedEpisode], group_size: int, columns: int
) -> tuple[Trajectories, Sequence[Episode]]:
    """Returns the rows of episodes, on the host, and the episodes in words.

    The first context of each episode ends in one column, padded left. `columns` columns follow it.
    """
    B, contexts, rests = len(episodes), [], []
    for episode in episodes:
        context, rest = divided(episode.segments)
        contexts.append(context)
        rests.append(rest)
    W = padded_width(max(len(context["tokens"]) for context in contexts))

    def row_filled(name: str, fill: Any, dtype: Any) -> np.ndarray:
        filled = np.full((B, W + columns), fill, dtype)
        for row, (context, rest) in enumerate(zip(contexts, rests, strict=True)):
            filled[row, W - len(context[name]) : W] = context[name]
            filled[row, W : W + len(rest[name])] = rest[name]
        return filled

    tokens_BT = row_filled("tokens", policy.pad_id, np.int32)
    firsts = [tuple(context["tokens"].tolist()) for context in contexts]
    same = all(firsts[row] == firsts[row - row % group_size] for row in range(B))
    trajectories = Trajectories(
        tokens_BT=tokens_BT,
        response_mask_BT=row_filled("chosen", False, bool),
        positions_BT=row_filled("positions", 0, np.int32),
        segment_ids_BT=row_filled("segments", 0, np.int32),
        behaviour_logprobs_BT=row_filled("logprobs", 0.0, np.float32),
        policy_version_BT=row_filled("versions", -1, np.int32),
        group_ids_B=np.arange(B, dtype=np.int32) // group_size,
        finish_B=np.array([episode.finish for episode in episodes], np.int8),
        group_size=group_size,
        prompt_columns=W if same else 0,
    )
    words = tuple(episode.in_words() for episode in episodes)
    return trajectories, words


def divided(
    segments: Sequence[Segment],
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns the arrays of the first context and of all that follows it.

    What the policy read last, without choosing a token after it, is left out.
    """
    lengths = [len(segment.tokens) for segment in segments]
    chosen = np.concatenate([np.array(segment.chosen, bool) for segment in segments])
    arrays = {
        "tokens": np.concatenate([np.array(x.tokens, np.int32) for x in segments]),
        "chosen": chosen,
        "logprobs": np.concatenate([np.array(x.logprobs, np.float32) for x in segments]),
        "versions": np.concatenate([np.array(x.versions, np.int32) for x in segments]),
        "positions": np.concatenate([np.arange(n, dtype=np.int32) for n in lengths]),
        "segments": np.repeat(np.arange(1, len(segments) + 1, dtype=np.int32), lengths),
    }
    places = np.flatnonzero(chosen)
    first, end = (places[0], places[-1] + 1) if len(places) else (len(chosen), len(chosen))
    context = {name: values[:first] for name, values in arrays.items()}
    return context, {name: values[first:end] for name, values in arrays.items()}
