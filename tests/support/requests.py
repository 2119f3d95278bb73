"""Requests to an engine."""

import jax
import numpy as np

from rl4p.protocols.engine import Request


def keys(*seeds):
    return np.stack([jax.random.key_data(jax.random.key(seed)) for seed in seeds])


def mixed_requests(most):
    """Returns contexts and limits of several lengths, and several completions of some of them.

    Args:
      most: the highest limit.
    """
    random = np.random.default_rng(0)
    contexts = [random.integers(0, 256, n).tolist() for n in (3, 16, 9, 1, 12)]
    limits, seeds = (most, 5, 30, most, 1), ((0,), (1,), (2, 3, 4), (5,), (6, 7))
    return [
        Request(tokens=tokens, keys_N=keys(*several), max_tokens=limit)
        for tokens, limit, several in zip(contexts, limits, seeds, strict=True)
    ]


def next_turns(requests, completions):
    """Returns a request behind each completion: its tokens and three more."""
    contexts = [request.tokens for request in requests for _ in request.keys_N]
    return [
        Request(
            tokens=[*context, *completion.tokens.tolist(), *range(70, 73)],
            keys_N=keys(20 + number),
            max_tokens=9 + number,
        )
        for number, (context, completion) in enumerate(zip(contexts, completions, strict=True))
    ]
