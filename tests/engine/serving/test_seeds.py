import jax
import pytest

from rl4p.engine.serving.seeds import key_data, repeated


@pytest.mark.parametrize("seed", [0, 7, 2**31, 2**32 - 1])
def test_keys_are_those_of_jax(seed):
    assert key_data(seed).tolist() == jax.random.key_data(jax.random.key(seed)).tolist()


def test_keys_of_large_seeds_have_both_words():
    assert key_data((3 << 32) + 5).tolist() == [3, 5]
    assert repeated((3 << 32) + 5, 4).tolist() == [3, 5, 3, 5]
