import jax
import pytest


@pytest.fixture(scope="module")
def sample(ending, params, prompts):
    """Calls a sampler; `ending` is a module's own policy, by which many a token ends a response."""

    def sample(sampler, *, prompts=prompts, group_size=2, seed=0, greedy=False, params=params):
        return sampler(
            ending,
            params,
            prompts,
            group_size=group_size,
            key=jax.random.key(seed),
            version=3,
            greedy=greedy,
        )

    return sample
