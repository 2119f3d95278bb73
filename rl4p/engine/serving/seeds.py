"""Random keys from the seeds of requests."""

from functools import cache

import numpy as np

from rl4p.engine.slots import key_shape


def key_data(seed: int) -> np.ndarray:
    """Returns the data of a random key from a seed, from 0 to 2**64 - 1.

    They are the upper and the lower 32 bits of the seed, as `jax.random.key` makes them with 64-bit
    integers on; with them off, it cuts the seed to 32 bits.
    """
    return repeated(seed, key_words())


def repeated(seed: int, words: int) -> np.ndarray:
    """Returns the two words of a seed, repeated to so many words."""
    return np.resize(np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32), words)


@cache
def key_words() -> int:
    """Returns the number of words in the data of a random key."""
    return key_shape().shape[0]
