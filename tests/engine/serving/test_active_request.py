import asyncio
import threading

import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Finish, Sampling
from rl4p.engine.detokenizer import Detokenizer
from rl4p.engine.sequence import Chunk, TokenSequence
from rl4p.engine.serving.active_request import (
    ActiveRequest,
    Choice,
    CompletionOptions,
    ReadyQueue,
)
from rl4p.engine.serving.body import ClientDisconnectError, HttpError

ONLY = TokenSequence(context=(1,), key=np.zeros(2, np.uint32), max_tokens=9, end_ids=())


@pytest.fixture(scope="module")
def texts(policy):
    return Detokenizer(policy.tokenizer)


@pytest.fixture
def make(texts, policy):
    def make(stream=False, **options):
        given = {"sampling": Sampling(), "max_tokens": 9, "end_ids": policy.end_ids}
        return Choice(texts, CompletionOptions(**given | options), stream=stream)

    return make


@pytest.fixture
def part(texts):
    def part(text, finish=None, version="1", end=()):
        tokens = [*texts.tokenizer.encode(text), *end]
        return Chunk(ONLY, tokens, [-1.0] * len(tokens), [], finish, version)

    return part


def test_an_end_token_is_no_text_unless_it_is_kept(make, part, policy):
    for keep, text in ((False, "ab"), (True, "ab<|end|>")):
        for stream in (False, True):
            completion = make(stream, keep_stop=keep, skip_special=False)
            completion.add(part("ab", Finish.STOP, end=policy.end_ids))
            assert completion.text() == text
            assert completion.finish == "stop"
            assert completion.matched == policy.end_ids[0]


def test_the_versions_of_tokens_are_spans(make, part):
    completion = make()
    for text, version in (("ab", "1"), ("c", "1"), ("d", "2")):
        completion.add(part(text, version=version))
    completion.add(Chunk(ONLY, [], [], [], Finish.ABORT))
    assert completion.versions() == [
        {"version": "1", "start": 0, "end": 3},
        {"version": "2", "start": 3, "end": 4},
    ]
    assert completion.versions(2)[0] == {"version": "1", "start": 2, "end": 3}
    assert completion.versions(3) == [{"version": "2", "start": 3, "end": 4}]
    assert (completion.finish, completion.matched) == ("abort", None)


def test_deltas_have_what_is_new(make, part):
    completion = make(stream=True)
    completion.add(part("ab"))
    assert completion.delta() == ("ab", 0)
    completion.add(part("c"))
    completion.add(part("d"))
    assert completion.delta() == ("cd", 2)
    assert completion.delta() == ("", 4)


def test_nothing_is_added_after_a_stop_string(make, part):
    completion = make(stops=("bc",))
    completion.add(part("ab"))
    completion.add(part("cdef"))
    completion.add(part("gh", Finish.LENGTH))
    assert (completion.text(), len(completion.tokens)) == ("a", 3)
    assert (completion.finish, completion.matched) == ("stop", "bc")
    assert len(completion.logprobs) == 3


def test_a_character_that_is_never_completed_is_the_end_of_the_text(make, texts):
    half = texts.tokenizer.encode("é")[:1]
    for stream in (True, False):
        completion = make(stream)
        completion.add(Chunk(ONLY, half, [-1.0], [], Finish.LENGTH, "1"))
        assert completion.text() == "\ufffd"


def test_a_stop_string_is_found_inside_of_characters_of_several_tokens(make, texts):
    tokens = texts.tokenizer.encode("aéb")
    for size in (1, 2, 4):
        completion = make(stops=("é",))
        for at in range(0, 4, size):
            completion.add(Chunk(ONLY, tokens[at : at + size], [0.0] * size, [], None, "1"))
        assert (completion.text(), len(completion.tokens)) == ("a", 3)


@pytest.fixture
def start(chatty, scheduler):
    def start(prompts=((1,),), seeds=((0,),), stream=False, scored=False, count=None, **options):
        given = {"sampling": Sampling(), "max_tokens": 9, "end_ids": chatty.end_ids}
        queue = ReadyQueue(asyncio.get_running_loop())
        active = ActiveRequest(
            queue,
            Detokenizer(chatty.tokenizer),
            CompletionOptions(**given | options),
            stream=stream,
            count=count or (lambda change: None),
        )
        active.submit(scheduler, prompts, seeds, scored=scored)
        return active

    return start


def test_what_other_threads_deliver_arrives(start, scheduler):
    scheduler.holds = True

    async def main():
        active = start(prompts=([1], [2]), seeds=([0, 1], [2, 3]))
        for submission in list(scheduler.open):
            threading.Thread(target=scheduler.go, args=(submission,)).start()
        return [each.text() for each in await active.finished()]

    assert asyncio.run(main()) == ["hello"] * 4
    assert len(scheduler.asked) == 2


def test_the_loop_is_woken_once_for_all_that_has_come(start, scheduler):
    scheduler.holds = True

    async def main():
        loop, woken = asyncio.get_running_loop(), []
        requests = [start() for _ in range(8)]
        queue = requests[0].queue
        wake = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda call: (woken.append(call), wake(call))
        for active in requests:
            active.queue = queue
        for submission in list(scheduler.open):
            scheduler.go(submission)
        for active in requests:
            await active.finished()
        return woken

    assert len(asyncio.run(main())) == 1


def test_an_answer_that_is_not_streamed_is_not_read_before_its_end(start, scheduler):
    async def main(stream):
        scheduler.holds, scheduler.size = True, 1
        active = start(stream=stream)
        reads, read = [], active.queue.put
        active.queue.put = lambda each: (reads.append(each), read(each))
        scheduler.go(*scheduler.open)
        await active.finished()
        return len(reads)

    assert asyncio.run(main(False)) == 1
    assert asyncio.run(main(True)) == 6


def test_changes_are_those_of_completions_with_new_tokens(start, scheduler):
    async def main():
        found = []
        active = start(seeds=[[0, 1]], stream=True)
        async for changed in active.changes():
            found += [index for index, _ in changed]
        return found

    assert asyncio.run(main()) == [0, 1]  # all parts came at once


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_counts_until_its_last_token_is_drawn(start, scheduler, stream):
    """Whether its client reads the response or not."""
    scheduler.holds = True

    async def main():
        changes = []
        active = start(([1], [2]), ([0], [1]), stream, scored=True, count=changes.append)
        assert (sum(changes), active.open) == (4, 4)
        *scores, first, second = scheduler.open
        for submission in scores:
            scheduler.open.pop(submission)[1]([float("nan")])
        scheduler.go(first)
        await asyncio.sleep(0)
        assert sum(changes) == 1
        scheduler.open[second][2](ValueError("The device failed."))
        await asyncio.sleep(0)
        return sum(changes), active.open

    assert asyncio.run(main()) == (0, 0)


def test_scores_arrive_and_their_error_is_a_refusal(start, scheduler):
    async def main():
        active = start(seeds=((),), scored=True)
        assert await active.finished() == []
        assert len(active.scores[0]) == 1
        scheduler.holds = True
        active = start(seeds=((),), scored=True)
        (submission,) = scheduler.open
        scheduler.open[submission][1](RuntimeError("The device failed."))
        with pytest.raises(HttpError, match="The device failed") as error:
            await active.finished()
        assert error.value.status == 503

    asyncio.run(main())


def test_a_client_that_leaves_ends_the_wait(start, scheduler):
    scheduler.holds = True

    async def main():
        active = start(prompts=([1], [2]), seeds=([0], [1]), scored=True)
        asyncio.get_running_loop().call_soon(active.disconnect)
        with pytest.raises(ClientDisconnectError):
            await active.finished()
        with pytest.raises(ClientDisconnectError):  # and later ones
            await active.finished()

    asyncio.run(main())
    assert len(scheduler.cancelled) == 4


def test_stop_strings_have_a_submission_for_each_completion(start, scheduler):
    async def main():
        return await start(seeds=[[0, 1, 2]], stops=("x",)).finished()

    assert len(asyncio.run(main())) == 3
    assert [work.seeds for work in scheduler.asked] == [[0], [1], [2]]


def test_a_refusal_in_the_middle_cancels_what_was_taken(start, scheduler, monkeypatch):
    scheduler.holds = True
    submit = scheduler.submit

    def refuses(work, *given):
        if len(scheduler.asked) == 1:
            raise InputError("too long")
        return submit(work, *given)

    monkeypatch.setattr(scheduler, "submit", refuses, raising=False)

    async def main():
        with pytest.raises(HttpError, match="too long") as error:
            start(prompts=([1], [2]), seeds=([0], [1]))
        assert error.value.status == 400

    asyncio.run(main())
    assert len(scheduler.cancelled) == 1
