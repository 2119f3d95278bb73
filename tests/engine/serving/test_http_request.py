import asyncio

import pytest

from rl4p.base.types import Sampling
from rl4p.engine.serving.choice import CompletionOptions
from rl4p.engine.serving.http_errors import ClientDisconnectError
from rl4p.engine.serving.http_request import HttpRequest
from rl4p.tools.serving.vllm_control import PauseQuery


def test_a_query_has_words_for_true_and_false(make_server):
    async def main():
        request = HttpRequest(
            server=make_server(),
            receive=None,
            query_string=b"mode=keep&clear_cache=false",
            content=b"",
        )
        return request.query(PauseQuery)

    assert asyncio.run(main()) == PauseQuery(mode="keep", clear_cache=False)


@pytest.mark.parametrize("leaves", [True, False])
def test_a_watched_request_counts_while_it_is_open(make_server, scheduler, leaves):
    scheduler.holds = True

    async def main():
        server, left = make_server(), asyncio.Event()

        async def receive():
            await left.wait()
            return {"type": "http.disconnect"}

        options = CompletionOptions(sampling=Sampling(), max_tokens=3, end_ids=())
        active = server.start(options, [[1]], [[0, 1]], stream=False)
        request = HttpRequest(server=server, receive=receive, query_string=b"", content=b"")

        async def answer():
            async with request.watched(active):
                assert server.open == 2
                if not leaves:
                    raise KeyError
                left.set()
                await active.finished()

        with pytest.raises(ClientDisconnectError if leaves else KeyError):
            await answer()
        return server.open

    assert asyncio.run(main()) == 0
    assert len(scheduler.cancelled) == 1
