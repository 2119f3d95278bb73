"""Rows of trajectories as traces: the turns with the tokens that the policy read and chose."""

from typing import Any

import numpy as np

from rl4p.base.types import Trajectories
from rl4p.distributed.processes import to_host


def training_traces(trajectories: Trajectories) -> list[list[dict[str, Any]]]:
    """Returns for each row its turns, in the fields of OpenEnv's `TrainingTrace`.

    A turn has `prompt_token_ids`, all tokens that the policy read before it in its segment;
    `completion_token_ids`; `per_token_logps`, under the sampling policy; and `loss_mask`, 1 on
    every token of the completion. The values are lists, as JSON has them.
    """
    host = to_host(trajectories)
    return [row_trace(host, row) for row in range(len(host.finish_B))]


def row_trace(host: Trajectories, row: int) -> list[dict[str, Any]]:
    """Returns the turns of a row of trajectories on the host."""
    names = ("tokens_BT", "response_mask_BT", "segment_ids_BT", "behaviour_logprobs_BT")
    tokens, mask, segments, logprobs = (np.asarray(getattr(host, name))[row] for name in names)
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
    return turns
