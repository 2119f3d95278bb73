"""The requests to an engine for pending groups, with random keys of their own."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.base.types import Array, Finish
from rl4p.distributed.processes import to_host
from rl4p.loop.pending_groups import PendingGroup
from rl4p.model.policy import Policy
from rl4p.protocols.engine import Engine, HoldsEpisodes, Request
from rl4p.rollout.episodes import seed_of


def requests_for(
    pending_groups: Sequence[PendingGroup], key: Array, groups: int, limit: int
) -> tuple[list[Request], list[tuple[int, int]]]:
    """Returns requests, and for each completion its place in `pending_groups` and its sample.

    A group without tokens is one request. Otherwise each unfinished sample is one.

    Args:
      key: the random key of the run.
      groups: P, the groups of a step.
      limit: the most tokens of a response.
    """
    requests, places = [], []
    for place, pending in enumerate(pending_groups):
        keys_G, prompt = keys_of(pending, key, groups), tuple(pending.prompt.tokens)
        if not any(x is not None and len(x.tokens) for x in pending.completions):
            task = pending.prompt.task
            requests.append(Request(tokens=prompt, keys_N=keys_G, max_tokens=limit, task=task))
            places += [(place, sample) for sample in range(len(keys_G))]
            continue
        for sample, part in enumerate(pending.completions):
            if part is not None and part.finish != Finish.ABORT:
                continue
            tokens = () if part is None else tuple(part.tokens.tolist())
            requests.append(
                Request(
                    tokens=prompt + tokens,
                    keys_N=keys_G[sample : sample + 1],
                    max_tokens=limit - len(tokens),
                    drawn=len(tokens),
                    task=pending.prompt.task,
                )
            )
            places.append((place, sample))
    return requests, places


def held(
    rollout: HoldsEpisodes,
    engine: Engine,
    policy: Policy,
    pending_groups: Sequence[PendingGroup],
    keys_PN: Sequence[np.ndarray],
) -> list[Any]:
    """Holds the episodes of groups, with the seeds of environments that `rollout` would choose."""
    return rollout.hold(
        engine,
        policy,
        [pending.prompt for pending in pending_groups],
        np.array(keys_PN),
        seeds=[seed_of(keys_N[0]) for keys_N in keys_PN],
    )


def finished_groups(places: Sequence[tuple[int, int]], finished: np.ndarray) -> int:
    """Returns how many groups of a call have no unfinished sample.

    Args:
      places: the place of the group and the sample of each completion, as `requests_for` returns.
      finished: whether each completion has finished.
    """
    groups = np.array([group for group, _ in places])
    return len(np.unique(groups)) - len(np.unique(groups[~finished]))


def keys_of(pending: PendingGroup, key: Array, groups: int) -> np.ndarray:
    """Returns the data of the random key of each sample: uint32 [G, ...].

    A synchronous run, whose step n // P samples the prompt of number n, has the same keys.
    """
    step, place = divmod(pending.number, groups)
    samples = len(pending.completions)
    step_key = jax.random.fold_in(key, step)
    return to_host(sample_keys(step_key, place * samples, pending.restarts, samples))


@partial(jax.jit, static_argnames="samples")
def sample_keys(key: Array, first: Array, restarts: Array, samples: int) -> Array:
    """Returns the data of the keys of consecutive sequences of a step, new after each restart.

    A rollout folds 0 into the key of its step, and then the number of the sequence.
    """
    sequence_G = first + jnp.arange(samples)
    keys_G = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.fold_in(key, 0), sequence_G)
    # Tokens fold in their place, which is below 2^31.
    again_G = jax.vmap(jax.random.fold_in, (0, None))(
        keys_G, jnp.uint32(2**31) + jnp.uint32(restarts)
    )
    return jnp.where(restarts > 0, jax.random.key_data(again_G), jax.random.key_data(keys_G))
