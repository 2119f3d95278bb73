import asyncio

import pytest

from rl4p.serving.completion import Wanted
from rl4p.serving.refusals import ClientGoneError
from rl4p.serving.request import Request
from rl4p.types import Sampling


def test_a_query_has_words_for_true_and_false(make_served):
    async def main():
        request = Request(
            served=make_served(), receive=None, query_string=b"mode=keep&clear_cache=false", body={}
        )
        query = request.query()
        return query.text("mode"), query.flag("clear_cache", True), query.end()

    assert asyncio.run(main()) == ("keep", False, None)


@pytest.mark.parametrize("leaves", [True, False])
def test_a_watched_request_counts_while_it_is_open(make_served, scheduler, leaves):
    scheduler.holds = True

    async def main():
        served, left = make_served(), asyncio.Event()

        async def receive():
            await left.wait()
            return {"type": "http.disconnect"}

        wanted = Wanted(sampling=Sampling(), max_tokens=3, end_ids=())
        live = served.live(wanted, [[1]], [[0, 1]], stream=False)
        request = Request(served=served, receive=receive, query_string=b"", body={})

        async def answer():
            async with request.watched(live):
                assert served.open == 2
                if not leaves:
                    raise KeyError
                left.set()
                await live.finished()

        with pytest.raises(ClientGoneError if leaves else KeyError):
            await answer()
        return served.open

    assert asyncio.run(main()) == 0
    assert len(scheduler.cancelled) == 1
