import pytest

from rl4p.engine.in_process import ContinuousEngine


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
