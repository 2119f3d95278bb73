"""Rows of made-up tokens, and what a model says of them."""

import numpy as np

from rl4p.base.types import Microbatching, Sampling, Trajectories
from rl4p.learner.logprobs import ScoreOptions, score_tokens


def rows(policy, lengths):
    """Returns rows with two sequences each, whose last three tokens are responses, and a pad."""
    T = max(sum(row) for row in lengths) + 1
    tokens_BT = np.random.default_rng(0).integers(0, 256, (len(lengths), T), np.int32)
    segments_BT, positions_BT = np.zeros_like(tokens_BT), np.zeros_like(tokens_BT)
    mask_BT = np.zeros(tokens_BT.shape, bool)
    for row, (first, second) in enumerate(lengths):
        for segment, (at, length) in enumerate([(0, first), (first, second)], 1):
            segments_BT[row, at : at + length] = segment
            positions_BT[row, at : at + length] = np.arange(length)
            mask_BT[row, at + length - 3 : at + length] = True
    return policy.mesh.shard_rows(
        Trajectories(
            tokens_BT=tokens_BT,
            response_mask_BT=mask_BT,
            positions_BT=positions_BT,
            segment_ids_BT=segments_BT,
            behaviour_logprobs_BT=np.zeros(tokens_BT.shape, np.float32),
            policy_version_BT=np.zeros_like(tokens_BT),
            group_ids_B=np.arange(len(lengths), dtype=np.int32),
            finish_B=np.zeros(len(lengths), np.int8),
        )
    )


def expected_scores(policy, params, trajectories):
    """Returns the log-probabilities of the responses at temperature 1."""
    options = ScoreOptions(
        decoder=policy.decoder,
        sampling=Sampling(),
        microbatching=Microbatching(tokens=4096, widths=1),
        mesh=policy.mesh,
    )
    return np.asarray(score_tokens(options, policy.merged(params), trajectories)["logprobs"])
