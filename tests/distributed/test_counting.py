"""Tests the counts of phases that go on."""

from concurrent.futures import ThreadPoolExecutor

from rl4p.distributed.counting import COUNTS, CountedCall, counted, item_done, newest


def test_the_newest_call_of_a_phase_is_the_one_that_goes_on():
    assert newest("rollout") is None
    with counted("rollout", "sequences", 8) as outer, counted("reward", "grades") as reward:
        with counted("rollout", "sequences", 4) as inner:
            assert newest("rollout") is inner
        assert newest("rollout") is outer
        assert newest("reward") is reward
    assert COUNTS == []


def test_threads_lose_no_count():
    with counted("reward", "grades") as count, ThreadPoolExecutor(8) as threads:
        for _ in range(8):
            threads.submit(lambda: [count.add(1, tokens=2, total=3) for _ in range(5000)])
    assert (count.done, count.tokens, count.total) == (40000, 80000, 120000)


def test_a_call_never_counts_more_items_than_it_has():
    with counted("reward", "grades") as count:
        part = CountedCall(newest("reward"), 3)
        with part.called():
            for expected in (1, 2, 3, 3):
                item_done()
                assert count.done == expected
    assert (count.done, count.total) == (3, 3)
    with CountedCall(None, 3).called():  # outside a phase
        item_done()
