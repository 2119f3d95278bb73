"""Work of many clients: what is delivered, and what interrupts it."""

import asyncio
import dataclasses
import threading
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.errors import InputError, RunError
from rl4p.base.types import Finish, Sampling
from rl4p.distributed.mesh import Mesh
from rl4p.engine import batch as batches
from rl4p.engine.batch import Batch, placed
from rl4p.engine.driver import Submission
from rl4p.engine.layout import FEW_TOKENS, WIDE, few_tokens
from rl4p.engine.serving import scheduler as schedulers
from rl4p.engine.serving.scheduler import Scheduler, Suspended, layout
from rl4p.model.scratch import Scratch
from rl4p.protocols.engine import Request
from rl4p.rollout.continuous import Continuous
from rl4p.tools.serving.weight_updates import WeightUpdates
from tests.support.scheduler import Client, sequences

ENDS = tuple(range(0, 264, 44))
R = 40
PLAIN = Sampling()
LONG = 100  # tokens, so that there is time to interrupt


@pytest.fixture(scope="module")
def ending(policy):
    return dataclasses.replace(policy, end_ids=ENDS)


@pytest.fixture
def scheduler(ending, params):
    scheduler = Scheduler(ending, params, "1", slots=4)
    scheduler.call_steps.steps = lambda slots: 4
    yield scheduler
    scheduler.close()
    assert not scheduler.thread.is_alive()


@pytest.fixture
def start(scheduler):
    """Returns a function that submits sequences and returns their client, with its submission."""

    def start(tokens=(5, 6, 7), seeds=(0,), max_tokens=R, seconds=0.0, unsent=lambda: 0, **fields):
        client = Client(len(seeds), seconds)
        own = sequences(tokens, seeds, max_tokens, **{"end_ids": ENDS} | fields)
        client.submission = scheduler.submit(own, client.deliver, client.fail, unsent)
        return client

    return start


def endless(start, **fields):
    """Starts work that nothing ends soon, and waits for its first tokens."""
    client = start(**{"max_tokens": LONG, "end_ids": (), "seconds": 0.05} | fields)
    assert client.arrived.wait(60)
    return client


@pytest.fixture(scope="module")
def in_process(ending, params):
    """Returns a function that gives the completions of the in-process sampler."""

    def complete(
        tokens, seeds, max_tokens=R, sampling=PLAIN, params=params, greedy=False, drawn=0, ends=ENDS
    ):
        options = {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p")}
        policy = dataclasses.replace(ending, end_ids=ends)
        engine = Continuous(max_response_tokens=R, **options).open(policy)
        engine.publish(params, 0)
        keys_N = np.stack([jax.random.key_data(jax.random.key(seed)) for seed in seeds])
        request = Request(tokens=tokens, keys_N=keys_N, max_tokens=max_tokens, drawn=drawn)
        return engine.complete([request], greedy=greedy)

    return complete


def assert_equal(client, completions):
    for index, expected in enumerate(completions):
        found = client.result(index)
        assert found.tokens == expected.tokens.tolist()
        np.testing.assert_allclose(found.logprobs, expected.logprobs, atol=1e-5)
        assert found.finish == expected.finish


def test_completions_are_those_of_the_sampler(start, in_process):
    """Whatever waits, runs beside them, or has another distribution."""
    random = np.random.default_rng(0)
    cases = [
        (random.integers(0, 256, length).tolist(), seeds, limit, sampling)
        for length, seeds, limit, sampling in (
            (3, (0,), R, Sampling()),
            (16, (1, 2, 3), 30, Sampling()),
            (9, (2**32 - 1, 5), 5, Sampling(temperature=0.7, top_k=20)),
            (17, (6,), R, Sampling(temperature=0.0)),
            (1, (7, 8), 1, Sampling(top_p=0.9)),
        )
    ]
    clients = [start(*case[:3], sampling=case[3]) for case in cases]
    finishes = set()
    for client, (*case, sampling) in zip(clients, cases, strict=True):
        assert_equal(client.wait(), in_process(*case, sampling=sampling))
        finishes |= {client.result(index).finish for index in range(len(case[1]))}
        assert set(client.result().versions) == {"1"}
    assert finishes == {Finish.STOP, Finish.LENGTH}


def test_equal_contexts_that_wait_are_prefilled_once(scheduler, start):
    before = endless(start, seeds=range(4))  # takes all slots
    several = [start((1, 2, 3), (seed, seed + 10)) for seed in range(3)]
    scheduler.cancel(before.submission)
    tokens = {tuple(client.wait().result().tokens) for client in several}
    assert len(tokens) == 3
    assert scheduler.counts()["prefilled_prompts"] == 2


@pytest.mark.slow
def test_no_end_token_is_drawn_early(start):
    ends, count = tuple(range(0, 264, 2)), 8
    early = start(seeds=range(count), end_ids=ends).wait()
    late = start(seeds=range(count), end_ids=ends, min_tokens=6).wait()
    assert min(len(early.result(i).tokens) for i in range(count)) < 6
    for index in range(count):
        *tokens, last = late.result(index).tokens
        assert len(tokens) >= 6
        assert not set(tokens) & set(ends)
        assert last in ends
    assert min(len(late.result(i).tokens) for i in range(count)) == 7


def test_the_most_probable_tokens_are_told(start):
    sampling = Sampling(top_k=3)
    found = start(sampling=sampling, alternatives=5, max_tokens=6).wait().result()
    plain = start(sampling=sampling, max_tokens=6).wait().result()
    assert (plain.tokens, plain.alternatives) == (found.tokens, [])
    assert len(found.alternatives) == len(found.tokens)
    for token, logprob, others in zip(
        found.tokens, found.logprobs, found.alternatives, strict=True
    ):
        assert len(others) == 3  # of five, those in the support
        assert [x for _, x in others] == sorted((x for _, x in others), reverse=True)
        assert dict(others)[token] == pytest.approx(logprob, abs=1e-6)
        assert np.exp([x for _, x in others]).sum() == pytest.approx(1, abs=1e-5)


def test_scores_are_the_logprobs_of_drawn_tokens(scheduler, start):
    context = [5, 6, 7]
    drawn = start(context, end_ids=(), max_tokens=30).wait().result()
    found, done = [], threading.Event()
    scheduler.score([*context, *drawn.tokens], lambda x: (found.append(x), done.set()))
    assert done.wait(60)
    assert np.isnan(found[0][0])
    assert len(found[0]) == 33
    np.testing.assert_allclose(found[0][3:], drawn.logprobs, atol=1e-5)


def test_cancelled_work_frees_its_slots(scheduler, start):
    client = endless(start, seeds=range(4))
    scheduler.cancel(client.submission)
    count = len(client.chunks[0])
    assert start(max_tokens=3).wait().result().finish is not None
    assert len(client.chunks[0]) <= count + 1  # one may have been on its way
    assert scheduler.counts()["cancelled"] == 4


@pytest.mark.slow
def test_who_does_not_read_gives_way_to_others_and_goes_on_exactly(
    scheduler, start, in_process, monkeypatch
):
    monkeypatch.setattr(schedulers, "POLL_SECONDS", 0.01)
    unsent = [1]
    client = endless(start, seeds=range(4), max_tokens=R, unsent=lambda: unsent[0])
    other = start((1, 2), seeds=(9,), max_tokens=4, end_ids=()).wait()
    assert client.left == 4
    assert scheduler.counts()["suspended"] == 1  # no more than others need
    while client.left > 1:
        time.sleep(0.01)
    assert not client.done.wait(0.2)
    assert scheduler.counts()["running"] == 0
    unsent[0] = 0
    completions = in_process((5, 6, 7), range(4), ends=())
    for index, expected in enumerate(completions):
        assert client.wait().result(index).tokens == expected.tokens.tolist()
    assert other.result().tokens == in_process((1, 2), (9,), 4, ends=())[0].tokens.tolist()


@pytest.mark.slow
def test_nobody_gives_way_if_there_are_slots_or_a_pause_waits(scheduler, start, begin_pause):
    alone = endless(start, seeds=range(3), max_tokens=R, unsent=lambda: 1)
    other = start((1, 2), seeds=(9,), max_tokens=4, end_ids=()).wait()
    alone.wait()
    assert scheduler.counts()["suspended"] == 0
    client = endless(start, seeds=range(4), unsent=lambda: 1)
    other = start((1, 2), seeds=(9,), max_tokens=4, end_ids=()).wait()
    assert scheduler.counts()["suspended"] == 1
    scheduler.resume(begin_pause()())
    assert client.done.is_set()
    assert [client.result(index).finish for index in range(4)] == [Finish.LENGTH] * 4
    assert other.error is None


@pytest.mark.parametrize("end", ["stalls", "is cancelled"])
def test_a_client_that_never_reads_is_given_up(scheduler, start, monkeypatch, end):
    monkeypatch.setattr(schedulers, "POLL_SECONDS", 0.01)
    client = endless(start, seeds=range(4), max_tokens=R, unsent=lambda: 1)
    start((1, 2), seeds=(9,), max_tokens=4, end_ids=()).wait()
    while client.left > 1:
        time.sleep(0.01)
    if end == "stalls":
        monkeypatch.setattr(schedulers, "STALLED_SECONDS", 0.0)
        assert str(client.wait().error).startswith("The client read less than 64 KiB of its")
    else:
        scheduler.cancel(client.submission)
    start().wait()
    until = time.monotonic() + 60
    while scheduler.counts()["suspended"] and time.monotonic() < until:  # until the next look
        time.sleep(0.01)
    assert scheduler.counts()["suspended"] == scheduler.counts()["waiting"] == 0


@pytest.mark.slow
def test_aborted_work_keeps_its_tokens(scheduler, start):
    first, second = endless(start, seeds=range(4)), start()
    scheduler.abort([first.submission])
    assert {first.wait().result(i).finish for i in range(4)} == {Finish.ABORT}
    whole = start(max_tokens=LONG, end_ids=()).wait().result()
    tokens = first.result().tokens
    assert 0 < len(tokens) < LONG
    assert tokens == whole.tokens[: len(tokens)]
    assert second.wait().result().finish != Finish.ABORT
    assert scheduler.counts()["aborted"] == 4


@pytest.mark.slow
def test_kept_work_goes_on_after_a_pause(scheduler, start):
    expected = start(max_tokens=LONG, end_ids=()).wait().result()
    client = endless(start)
    lease = scheduler.pause("keep", 60)
    assert scheduler.paused
    waiting = start(max_tokens=2)
    assert not waiting.done.wait(0.1)
    assert not client.done.is_set()
    scheduler.resume(lease)
    assert client.wait().result().tokens == expected.tokens
    assert waiting.wait().result().tokens


@pytest.fixture
def begin_pause(scheduler):
    """Begins a pause in a thread; the function that it returns waits for the lease."""

    def begin_pause(mode="wait"):
        leases = []
        thread = threading.Thread(target=lambda: leases.append(scheduler.pause(mode, 60)))
        thread.start()
        return lambda: (thread.join(), leases[0])[1]

    return begin_pause


@pytest.mark.quick(1)
@pytest.mark.parametrize("count", [1, 2])
def test_pauses_wait_for_earlier_work_and_queue_later_work_once(
    scheduler, start, begin_pause, count
):
    """Each of several trainers may wait for the requests to end."""
    expected = start((1, 2, 3), (0, 1), max_tokens=LONG, end_ids=()).wait()
    client = endless(start)
    pauses = [begin_pause() for _ in range(count)]
    while scheduler.drains < count:
        pass
    later = start((1, 2, 3), (0, 1), max_tokens=LONG, end_ids=())
    *leases, last = [lease() for lease in pauses]
    assert client.done.is_set()
    assert len(scheduler.waiting) == 2
    for lease in leases:
        scheduler.resume(lease)
    assert scheduler.paused
    assert not later.done.wait(0.1)
    scheduler.resume(last)
    later.wait()
    for index in range(2):
        assert later.result(index).tokens == expected.result(index).tokens


@pytest.mark.slow
def test_a_pause_does_not_wait_for_what_another_pause_stops(scheduler, start, begin_pause):
    client = endless(start)
    waiting = begin_pause()
    while not scheduler.drains:
        pass
    keeping = scheduler.pause("keep", 60)
    scheduler.resume(waiting())
    assert not client.done.wait(0.1)
    scheduler.resume(keeping)
    client.wait()


def test_a_pause_that_waits_too_long_is_none(scheduler, start):
    client = endless(start)
    with pytest.raises(RunError, match=r"did not end within 1e-06 seconds"):
        scheduler.pause("wait", 1e-6)
    assert not scheduler.paused
    assert client.wait().result().finish == Finish.LENGTH


def test_a_pause_that_waits_too_long_queues_nothing_while_another_waits(
    scheduler, start, begin_pause
):
    client = endless(start)
    waiting = begin_pause()
    while not scheduler.drains:
        pass
    later = start((1, 2, 3), (0,), max_tokens=4, end_ids=())
    with pytest.raises(RunError, match=r"did not end within 1e-06 seconds"):
        scheduler.pause("wait", 1e-6)
    assert list(scheduler.held_back) == list(scheduler.submissions)[1:]
    lease = waiting()
    assert client.done.is_set()
    assert not later.done.is_set()
    scheduler.resume(lease)
    later.wait()


def test_a_pause_may_abort(scheduler, start):
    client = endless(start)
    scheduler.pause("abort", 60)
    assert client.done.is_set()
    assert client.result().finish == Finish.ABORT


@pytest.mark.quick(1)
@pytest.mark.parametrize("begins", ["update", "begin"])
@pytest.mark.parametrize("mode", ["keep", "wait", "abort"])
def test_an_update_waits_for_what_starts_as_a_pause_ends(scheduler, start, params, mode, begins):
    """Another client's pause ends between the arrival of an update and the update's lease."""
    clients = [endless(start)]

    async def main():
        loop = asyncio.get_running_loop()
        server = SimpleNamespace(scheduler=scheduler, queue=SimpleNamespace(loop=loop))
        updates = WeightUpdates(server)
        await updates.pause("other", mode, recompute=True)
        in_thread = updates.in_thread

        async def after_the_pause(call, *arguments, **options):
            if call == scheduler.pause:
                updates.resume("other")
                clients.append(endless(start, seeds=(1,)))
            return await in_thread(call, *arguments, **options)

        updates.in_thread = after_the_pause
        other = scheduler.policy.for_sampling(jax.tree.map(lambda x: x * 1.1, params))
        if begins == "begin":
            await updates.begin("own")
        else:
            async with updates.update("own", abort=False, keeps=False):
                await in_thread(scheduler.replace, lambda _: other, "2", recompute=True)
        updates.close()

    asyncio.run(main())
    assert [x.done.is_set() for x in clients] == [True, True]
    assert {version for x in clients for version in x.result().versions} == {"1"}
    finishes = [x.result().finish for x in clients]
    assert finishes == [Finish.ABORT if mode == "abort" else Finish.LENGTH, Finish.LENGTH]


@pytest.mark.quick(1)
@pytest.mark.parametrize("recompute", [True, False])
def test_new_weights_in_the_middle_of_a_completion(scheduler, start, in_process, params, recompute):
    client = endless(start, sampling=Sampling(temperature=0.0))
    lease = scheduler.pause("keep", 60)
    other = jax.tree.map(lambda x: x * 1.1, params)
    scheduler.replace(lambda _: scheduler.policy.for_sampling(other), "2", recompute=recompute)
    assert scheduler.version == "2"
    scheduler.resume(lease)
    found = client.wait().result()
    drawn = found.versions.count("1")
    assert found.versions == ["1"] * drawn + ["2"] * (LONG - drawn)
    (again,) = in_process(
        [5, 6, 7, *found.tokens[:drawn]], (0,), min(R, LONG - drawn), params=other, greedy=True
    )
    rest = found.logprobs[drawn : drawn + len(again.tokens)]
    same = len(rest) == len(again.logprobs) and np.allclose(rest, again.logprobs, atol=1e-5)
    assert same == recompute


@pytest.mark.slow
def test_samples_that_wait_begin_with_the_new_weights(scheduler, start, in_process, params):
    """Also if the running ones keep their cache: their prompt is prefilled again."""
    client = endless(start, seeds=range(6), max_tokens=R)  # two of them wait
    lease = scheduler.pause("keep", 60)
    assert len(scheduler.waiting) == 2
    other = jax.tree.map(lambda x: x * 1.1, params)
    scheduler.replace(lambda _: scheduler.policy.for_sampling(other), "2", recompute=False)
    scheduler.resume(lease)
    client.wait()
    expected = in_process((5, 6, 7), range(6), params=other)
    for index in (4, 5):
        found = client.result(index)
        assert set(found.versions) == {"2"}
        count = len(expected[index].tokens)  # which may have ended
        assert found.tokens[:count] == expected[index].tokens.tolist()
        np.testing.assert_allclose(found.logprobs[:count], expected[index].logprobs, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [7, 16])
def test_a_call_may_cross_the_sizes_of_the_cache(scheduler, start, in_process, steps):
    """They are 64, 96 and 128 columns, and a call may begin with less room than it has steps."""
    scheduler.call_steps.steps = lambda slots: steps
    contexts = [(5, 6, 7), tuple(range(50, 80)), tuple(range(61))]
    clients = [start(context, max_tokens=60, end_ids=()) for context in contexts]
    for context, client in zip(contexts, clients, strict=True):
        tokens = client.wait().result().tokens
        for begin in (0, 20):  # as much as the sampler draws at a time
            (expected,) = in_process([*context, *tokens[:begin]], (0,), drawn=begin, ends=())
            assert tokens[begin : begin + R] == expected.tokens.tolist()


def test_weights_that_do_not_fit_change_nothing(scheduler, start):
    expected = start().wait().result()

    def refuse(_):
        raise InputError("It is of another model.")

    with pytest.raises(InputError, match="another model"):
        scheduler.replace(refuse, "2", recompute=True)
    assert (scheduler.version, scheduler.broken) == ("1", None)
    assert start().wait().result().tokens == expected.tokens


def test_half_replaced_weights_serve_nobody_until_whole_ones_arrive(scheduler, start, params):
    client = endless(start)
    expected = start().wait().result()

    def lose(_):
        raise OSError("The disk is gone.")

    with pytest.raises(RunError, match="The weights could not be replaced: The disk is gone"):
        scheduler.replace(lose, "2", recompute=True)
    assert str(client.wait().error) == scheduler.broken
    with pytest.raises(RunError, match="The disk is gone"):
        start()
    scheduler.replace(lambda _: scheduler.policy.for_sampling(params), "3", recompute=True)
    found = start().wait().result()
    assert (found.tokens, set(found.versions)) == (expected.tokens, {"3"})


def test_a_version_may_change_alone(scheduler, start):
    scheduler.version = "5"
    assert set(start().wait().result().versions) == {"5"}


@pytest.mark.parametrize("told", [True, False])
def test_log_probabilities_that_are_no_numbers_end_the_work(scheduler, start, params, told):
    spoiled = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), params)
    expected = start().wait().result()
    scheduler.replace(lambda _: scheduler.policy.for_sampling(spoiled), "2", recompute=True)
    if told:
        assert "are not numbers" in str(start().wait().error)
    else:  # a client without `fail` sees an end nevertheless
        client = Client()
        scheduler.submit(sequences(), client.deliver)
        assert client.wait().result().finish == Finish.ABORT
    found = []
    done = threading.Event()
    scheduler.score([1, 2], lambda x: (found.append(x), done.set()))
    assert done.wait(60)
    assert "are not numbers" in str(found[0])
    assert scheduler.counts()["failed"] == 2
    scheduler.replace(lambda _: scheduler.policy.for_sampling(params), "3", recompute=True)
    assert start().wait().result().tokens == expected.tokens  # nothing is left in the cache


@pytest.mark.parametrize("name", ["decode", "programs.prefill", "programs.place"])
def test_an_error_of_the_device_ends_what_runs(scheduler, start, monkeypatch, name):
    expected = start().wait().result()

    def fail(*_, **__):
        raise RuntimeError("no memory")

    monkeypatch.setattr(f"{batches.__name__}.{name}", fail)
    client = start()
    assert str(client.wait().error) == "The device failed: no memory"
    monkeypatch.undo()
    assert start().wait().result().tokens == expected.tokens
    assert scheduler.counts()["failed"] == 1


def test_a_delivery_that_fails_concerns_nobody_else(scheduler, start, caplog):
    def refuse(_):
        raise ValueError("the loop is closed")

    scheduler.submit(sequences(max_tokens=3), refuse)
    assert start().wait().result().tokens
    assert "the loop is closed" in caplog.text


def test_what_the_model_has_no_positions_for_is_refused(scheduler, start):
    sentence = "100 tokens with max_tokens=29 is longer than the 128 positions of the model"
    with pytest.raises(InputError, match=sentence):
        start([1] * 100, max_tokens=29)
    with pytest.raises(InputError, match="at least one token"):
        start([])
    with pytest.raises(InputError, match="129 tokens cannot be scored"):
        scheduler.score([1] * 129, print)
    assert len(start([1] * 100, max_tokens=28, end_ids=()).wait().result().tokens) == 28


def test_closing_ends_all_work(ending, params):
    scheduler, client = Scheduler(ending, params, "1", slots=4), Client()
    scheduler.submit(sequences(max_tokens=LONG), client.deliver)
    assert client.arrived.wait(60)
    scheduler.close()
    assert client.result().finish == Finish.ABORT
    with pytest.raises(RunError, match="shutting down"):
        scheduler.submit(sequences(), client.deliver)
    with pytest.raises(RunError, match="shutting down"):
        scheduler.replace(lambda x: x, "2", recompute=False)


def test_what_is_ordered_before_the_end_is_done(ending, params):
    """Also while the thread is busy with an earlier order: nobody waits forever."""
    scheduler = Scheduler(ending, params, "1", slots=4)
    begun, go_on = threading.Event(), threading.Event()
    scheduler.run_between_calls(lambda: (begun.set(), go_on.wait(60)))
    assert begun.wait(60)
    second = scheduler.run_between_calls(lambda: "done")
    end = threading.Thread(target=scheduler.close)
    end.start()
    while not scheduler.closing:
        time.sleep(0.001)
    go_on.set()
    assert second.result(60) == "done"
    end.join(60)
    assert not scheduler.thread.is_alive()


def test_results_that_are_lost_end_their_submissions_alone(scheduler, start, monkeypatch):
    expected = start().wait().result()

    def fails(*_):
        raise ValueError("lost")

    with monkeypatch.context() as patched:
        patched.setattr(scheduler, "collect_deliveries", fails)
        clients = [start() for _ in range(3)]
        assert {str(x.wait().error) for x in clients} == {"The device failed: lost"}
    assert start().wait().result().tokens == expected.tokens


@pytest.mark.slow
def test_an_idle_server_releases_its_cache(scheduler, start, monkeypatch):
    monkeypatch.setattr(schedulers, "IDLE_SECONDS", 0.01)
    expected = start().wait().result()
    for _ in range(1000):
        if not scheduler.counts()["cache_columns"]:
            break
        time.sleep(0.01)
    assert scheduler.counts()["cache_columns"] == 0
    client = endless(start)
    lease = scheduler.pause("keep", 60)
    time.sleep(0.05)
    assert scheduler.counts()["cache_columns"] > 0  # something is paused in it
    scheduler.resume(lease)
    assert client.wait().result().finish == Finish.LENGTH
    assert start().wait().result().tokens == expected.tokens


@pytest.fixture
def make_submission(monkeypatch):
    """Returns a function that makes a submission of some sequences with so many unsent bytes."""
    monkeypatch.setattr(schedulers, "POLL_SECONDS", 0.0)

    def make(unsent, count=1):
        own = sequences(seeds=range(count))
        submission = Submission(print, None, lambda: submission.bytes, sequences=own)
        submission.bytes = unsent
        return submission, own

    return make


def test_only_those_with_unsent_bytes_are_suspended_and_no_more_than_needed(make_submission):
    (_, reading), (_, behind), (_, two) = (
        make_submission(0),
        make_submission(1),
        make_submission(5, 2),
    )
    suspended = Suspended()
    running = [*reading, *behind, *two]
    assert suspended.take(running, 0) == suspended.take(running, -1) == []
    assert suspended.take(running, 2) == [behind[0], two[0]]
    assert list(suspended.since) == [behind[0], two[0]]
    assert suspended.take([*reading, two[1]], 9) == [two[1]]
    assert len(suspended.since) == 3


def test_they_go_on_once_their_clients_have_read(make_submission):
    (first, one), (second, two) = make_submission(3), make_submission(4)
    suspended = Suspended()
    suspended.take([*one, *two], 9)
    assert suspended.look(all_of_them=False) == ([], [])
    first.bytes = 0
    assert suspended.look(all_of_them=False) == (one, [])
    assert suspended.look(all_of_them=True) == (two, [])
    suspended.take(two, 9)
    second.open = False
    assert suspended.look(all_of_them=True) == ([], [])
    assert not suspended.since


def test_the_clients_are_looked_at_now_and_then(make_submission, monkeypatch):
    submission, own = make_submission(3)
    suspended = Suspended()
    suspended.take(own, 9)
    assert suspended.look(all_of_them=False) == ([], [])
    monkeypatch.setattr(schedulers, "POLL_SECONDS", 1000.0)
    submission.bytes = 0
    assert suspended.look(all_of_them=False) == ([], [])
    assert suspended.look(all_of_them=True) == (own, [])


@pytest.mark.parametrize(
    ("before", "after", "stalled"),
    [(100, 100, True), (100, 1, True), (100, 0, False), (10**6, 10**6 - 2**16, False)],
)
def test_who_reads_too_little_is_ended(make_submission, monkeypatch, before, after, stalled):
    submission, own = make_submission(before, 2)
    suspended = Suspended()
    suspended.take(own, 9)
    submission.bytes = after
    assert suspended.look(all_of_them=False)[1] == []
    monkeypatch.setattr(schedulers, "STALLED_SECONDS", 0.0)
    assert suspended.look(all_of_them=False)[1] == [submission] * stalled
    if after > 100:  # what is read counts from now on
        assert suspended.look(all_of_them=False)[1] == [submission]


@pytest.mark.parametrize(("slots", "sizes"), [(32, [4, 16, 32]), (20, [4, 16, 20]), (2, [2])])
def test_few_numbers_of_slots_compile(policy, slots, sizes):
    assert layout(policy, slots).sizes == sizes


@pytest.mark.slow
def test_a_context_has_the_same_cache_alone_and_with_others():
    model = Scratch(
        width=WIDE, layers=2, heads=4, num_kv_heads=1, feed_forward_width=80, max_positions=128
    )
    policy, params = model.build(Mesh(dp=1), jax.random.key(0))
    sampled, random = placed(policy, policy.for_sampling(params)), np.random.default_rng(1)
    for length, rows in ((20, (2, 8)), (50, (1, 4)), (100, (1, 2))):
        contexts = [tuple(random.integers(0, 256, length).tolist()) for _ in range(8)]
        alone, together = (Batch(policy, layout(policy, 4)) for _ in range(2))
        alone.prefill(sampled, contexts[:1], [0])
        together.prefill(sampled, contexts, [0] * len(contexts))
        (few, a), (several, b) = (x.contexts[contexts[0]][0] for x in (alone, together))
        assert (len(few.positions_BS), len(several.positions_BS)) == rows
        for one, other in zip(jax.tree.leaves(few), jax.tree.leaves(several), strict=True):
            np.testing.assert_array_equal(one[a], other[b])
            assert np.any(one[a] != 0)


def test_small_models_prefill_the_same_number_of_contexts_always(policy):
    made = layout(policy, 4)
    assert [made.rows(32, waiting) for waiting in (1, 2, 8)] == [8, 8, 8]


def test_several_devices_prefill_the_same_number_of_contexts_always():
    wide = SimpleNamespace(config=SimpleNamespace(width=WIDE))
    for size, few in ((1, FEW_TOKENS), (2, None)):
        mesh = SimpleNamespace(size=size)
        assert few_tokens(SimpleNamespace(decoder=wide, sampling_mesh=mesh)) == few
