"""The trajectories and episodes of answered prompts, and rows of trajectories as traces."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from rl4p.base.types import Episode, Finish, Prompt, Trajectories
from rl4p.data.extraction import response_texts
from rl4p.distributed.processes import to_host
from rl4p.model.policy import Policy, pad_left
from rl4p.protocols.engine import Completion, finish

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def given_completion(tokens: Sequence[int], limit: int, end_ids: Sequence[int]) -> Completion:
    """Returns a completion of given tokens, which no policy drew, cut to `limit` tokens."""
    kept = np.array(tokens[:limit], np.int32)
    return Completion(
        tokens=kept,
        logprobs=np.zeros(kept.shape, np.float32),
        versions=np.full_like(kept, -1),
        finish=finish(kept, end_ids),
    )


def answers(
    policy: Policy,
    prompts: Sequence[Prompt],
    completions: Sequence[Completion],
    columns: int,
    chosen: Sequence[Sequence[tuple[int, int]]] | None = None,
) -> tuple[Trajectories, Sequence[Episode]]:
    """Joins P prompts, padded left, with G completions each, sharded over the mesh.

    The arguments are as in `answers_on_host`.
    """
    trajectories, episodes = answers_on_host(policy, prompts, completions, columns, chosen)
    episodes = episodes if jax.process_count() > 1 else tuple(episodes)
    return policy.mesh.shard_rows(trajectories), episodes


def answers_on_host(
    policy: Policy,
    prompts: Sequence[Prompt],
    completions: Sequence[Completion],
    columns: int,
    chosen: Sequence[Sequence[tuple[int, int]]] | None = None,
) -> tuple[Trajectories, "Decoded"]:
    """Joins P prompts, padded left, with G completions each.

    Args:
      completions: P x G completions, in the order of the prompts.
      columns: the number of columns of the responses, at least as many as the longest.
      chosen: for each prompt, the ranges of tokens in the sequence of prompt and completion that
        belong to the response mask; None for exactly the tokens of the completions.
    """
    B, group_size = len(completions), len(completions) // len(prompts)
    tokens_PT, mask_PT = pad_left([prompt.tokens for prompt in prompts], policy.pad_id)
    mask_BR = np.arange(columns) < np.array([[len(x.tokens)] for x in completions])

    def beside(prompt_PT: np.ndarray, response_BR: np.ndarray) -> np.ndarray:
        return np.concatenate([np.repeat(prompt_PT, group_size, axis=0), response_BR], axis=1)

    def of_responses(name: str, outside: float, prompt_PT: np.ndarray) -> np.ndarray:
        values = np.concatenate([getattr(x, name) for x in completions])
        response_BR = np.full(mask_BR.shape, outside, values.dtype)
        response_BR[mask_BR] = values
        return beside(prompt_PT, response_BR)

    segments_BT = beside(mask_PT, mask_BR).astype(np.int32)
    response_mask_BT = beside(np.zeros_like(mask_PT), mask_BR)
    if chosen is not None:
        response_mask_BT = np.zeros_like(response_mask_BT)
        for rows_GT, prompt, ranges in zip(
            np.split(response_mask_BT, len(prompts)), prompts, chosen, strict=True
        ):
            first = tokens_PT.shape[1] - len(prompt.tokens)
            for start, end in ranges:
                rows_GT[:, first + start : first + end] = True
        response_mask_BT &= segments_BT > 0  # a response may be cut
    trajectories = Trajectories(
        tokens_BT=of_responses("tokens", policy.pad_id, tokens_PT),
        response_mask_BT=response_mask_BT,
        positions_BT=np.maximum(np.cumsum(segments_BT, axis=1, dtype=np.int32) - 1, 0),
        segment_ids_BT=segments_BT,
        behaviour_logprobs_BT=of_responses("logprobs", 0, np.zeros(mask_PT.shape, np.float32)),
        policy_version_BT=of_responses("versions", -1, np.full_like(tokens_PT, -1)),
        group_ids_B=np.arange(B, dtype=np.int32) // group_size,
        finish_B=np.array([x.finish for x in completions], np.int8),
        group_size=group_size,
        prompt_columns=tokens_PT.shape[1] if chosen is None else 0,
    )
    of_rows = [prompt for prompt in prompts for _ in range(group_size)]
    tokens = [x.tokens.tolist() for x in completions]
    finishes, engines = [x.finish for x in completions], [x.engine for x in completions]
    return trajectories, Decoded(policy.tokenizer, of_rows, tokens, finishes, engines)


@dataclass(frozen=True)
class Decoded(Sequence[Episode]):
    """A lazy sequence of episodes, since each of several processes decodes only some."""

    tokenizer: "PreTrainedTokenizerFast"
    prompts: list[Prompt]
    tokens: list[list[int]]
    finishes: list[Finish]
    engines: list[str]

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            prompts, tokens, finishes = self.prompts[at], self.tokens[at], self.finishes[at]
            return Decoded(self.tokenizer, prompts, tokens, finishes, self.engines[at])
        return self.episode(at, response_texts(self.tokenizer, [self.tokens[at]])[0])

    def __iter__(self) -> Iterator[Episode]:
        for at, response in enumerate(response_texts(self.tokenizer, self.tokens)):
            yield self.episode(at, response)

    def episode(self, at: int, response: str) -> Episode:
        return Episode(
            prompt=self.prompts[at],
            response=response,
            tokens=len(self.tokens[at]),
            finish=self.finishes[at],
            engine=self.engines[at],
        )


def training_traces(trajectories: Trajectories) -> list[list[dict[str, Any]]]:
    """Returns for each row its turns, in the fields of OpenEnv's `TrainingTrace`.

    A turn has `prompt_token_ids`, all tokens that the policy read before it in its segment;
    `completion_token_ids`; `per_token_logps`, under the sampling policy; and `loss_mask`, 1 on
    every token of the completion. The values are lists, as JSON has them.
    """
    host, traces = to_host(trajectories), []
    names = ("tokens_BT", "response_mask_BT", "segment_ids_BT", "behaviour_logprobs_BT")
    for tokens, mask, segments, logprobs in zip(*(getattr(host, x) for x in names), strict=True):
        turns = []
        for number in range(1, int(segments.max(initial=0)) + 1):
            own = np.flatnonzero(segments == number)
            edges = np.flatnonzero(np.diff(mask[own].astype(np.int8), prepend=0, append=0))
            for start, end in edges.reshape(-1, 2).tolist():
                chosen = own[start:end]
                turns.append(
                    {
                        "prompt_token_ids": tokens[own[:start]].tolist(),
                        "completion_token_ids": tokens[chosen].tolist(),
                        "per_token_logps": logprobs[chosen].tolist(),
                        "loss_mask": [1] * len(chosen),
                    }
                )
        traces.append(turns)
    return traces
