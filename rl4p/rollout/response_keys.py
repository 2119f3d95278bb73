"""Random keys of responses that depend on the seed, the prompt and the sample only."""

import hashlib
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.base.types import Array
from rl4p.distributed.processes import to_host

# Folded into the key of the seed first, so that no key equals one of training (`build`).
PURPOSE = 0x67656E


def response_keys(
    seed: int, names: Sequence[str], samples: int, *, first: Sequence[int] | None = None
) -> np.ndarray:
    """Returns uint32 [P, samples, ...], the data of one random key for each response.

    The key of sample n of a prompt is the key of the seed, folded with 64 bits of a hash of the
    prompt's name and then with n. It depends neither on other prompts nor on the number of samples.

    Args:
      names: a name for each prompt, such as its id, which distinguishes the prompts.
      samples: the number of consecutive samples of each prompt.
      first: the number of the first of them, by prompt; None is 0 for all.
    """
    words_P2 = np.array([words(name) for name in names], np.uint32)
    first_P = np.zeros(len(names), np.int32) if first is None else np.array(first, np.int32)
    return to_host(folded(jax.random.key(seed), words_P2, first_P, samples))


def words(name: str) -> tuple[int, int]:
    """Returns two 32-bit numbers, which are a hash of the name."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:8], "big")


@partial(jax.jit, static_argnames="samples")
def folded(key: Array, words_P2: Array, first_P: Array, samples: int) -> Array:
    key = jax.random.fold_in(key, PURPOSE)

    def of_prompt(words_2: Array, first: Array) -> Array:
        own = jax.random.fold_in(jax.random.fold_in(key, words_2[0]), words_2[1])
        return jax.vmap(jax.random.fold_in, (None, 0))(own, first + jnp.arange(samples))

    return jax.random.key_data(jax.vmap(of_prompt)(words_P2, first_P))
