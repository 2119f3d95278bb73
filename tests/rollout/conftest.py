import jax
import pytest

from rl4p.engine.in_process import ContinuousEngine


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


@pytest.fixture
def requests(monkeypatch):
    """Records the contexts that the engine reads, with the tokens that it draws after them."""
    seen = []
    stream = ContinuousEngine.stream

    def recorded(self, source, *, greedy=False):
        give = source.give

        def receive(request, completion):
            seen.append((list(request.tokens), completion.tokens.tolist()))
            give(request, completion)

        source.give = receive
        return stream(self, source, greedy=greedy)

    monkeypatch.setattr(ContinuousEngine, "stream", recorded)
    return seen
