"""Tests groups in flight in simulated runs: random delays, faults, restarts and resumed runs."""

import heapq
import json
import random
from collections import Counter
from dataclasses import dataclass, replace
from types import SimpleNamespace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from rl4p.loop.flights import Flights, Limits
from rl4p.protocols.engine import Completion
from rl4p.runs.checkpoint import with_arrays, without_arrays
from rl4p.types import Finish


@dataclass(frozen=True)
class Prompted:
    """The fields of a prompt that flights read."""

    id: str
    drawn_by: str | None = None


class Simulation:
    """A run with a virtual clock: an engine, a grader and a trainer that take random times.

    The prompts are numbers. Each token is a number that tells prompt, sample, restart and place, so
    that a group whose tokens come from elsewhere is found out.
    """

    def __init__(self, limits, seed, *, on_new_weights, faults, rejects, kills):
        self.limits = limits
        self.random = random.Random(seed)
        self.on_new_weights = on_new_weights
        self.faults, self.rejects, self.kills = faults, rejects, kills
        self.clock, self.events, self.tickets = 0.0, [], 0
        self.flights, self.taken, self.version = Flights(limits=limits), 0, -1
        self.calls = []  # of the engine: (call id, flights, version)
        self.grading = {}
        self.trained, self.rejected = [], []
        self.steps = 0
        self.saved = self.checkpoint()

    # The collector's rules, without threads.

    def take(self, count):
        prompts = [self.prompt(str(self.taken + i)) for i in range(count)]
        self.taken += count
        return prompts

    def prompt(self, id):
        return Prompted(id=id)

    def later(self, event, *args):
        self.tickets += 1
        heapq.heappush(
            self.events, (self.clock + self.random.expovariate(1.0), self.tickets, event, args)
        )

    def engine_works(self):
        """Starts a call if the engine is free, which it is for two calls at a time."""
        while len(self.calls) < 2 and (
            flights := self.flights.start(self.random.randint(1, 4), self.version)
        ):
            call = SimpleNamespace(flights=flights, version=self.version)
            self.calls.append(call)
            self.later(self.ends, call, False)

    def grader_works(self):
        for flight in self.flights.to_grade():
            if id(flight) not in self.grading:
                self.grading[id(flight)] = flight
                self.later(self.grades, flight)

    def ends(self, call, interrupted):
        if call not in self.calls:
            return
        self.calls.remove(call)
        for flight in call.flights:
            parts = [
                self.part(flight, sample, before, call.version, interrupted)
                for sample, before in enumerate(flight.completions)
            ]
            self.flights.receive(flight, parts, interrupted=interrupted)

    def part(self, flight, sample, before, version, interrupted):
        """Returns what a call adds to a sample: all of its rest, some of it, or nothing."""
        if before is not None and before.finish != Finish.ABORT:
            return None
        start = 0 if before is None else len(before.tokens)
        length, fault = 6 - start, self.random.random()
        if interrupted or fault < self.faults:
            length = self.random.randint(0, length - 1)
        finish = Finish.STOP if start + length == 6 else Finish.ABORT
        places = np.arange(start, start + length)
        tokens = ((int(flight.prompt.id) * 100 + sample) * 100 + flight.restarts) * 10 + places
        return Completion(
            tokens=tokens.astype(np.int64),
            logprobs=np.zeros(length, np.float32),
            versions=np.full(length, version, np.int32),
            finish=finish,
        )

    def grades(self, flight):
        self.grading.pop(id(flight))
        if flight in self.flights.flights:
            keep = self.random.random() >= self.rejects
            self.flights.graded(flight, object(), keep=keep)
            if not keep:
                self.rejected.append(flight.prompt.id)

    def publish(self):
        self.version = self.steps
        if self.on_new_weights != "finish":
            for call in list(self.calls):
                self.ends(call, True)

    def step(self):
        """Runs one step of the loop: publish, wait, train, and perhaps save or be killed."""
        self.publish()
        self.flights.drop_old(self.steps)
        while True:
            self.flights.admit(self.take)
            self.engine_works()
            self.grader_works()
            assert self.flights.failed() is None
            assert len(self.flights.flights) <= self.most_in_flight()
            if (batch := self.flights.batch(self.steps)) is not None:
                break
            assert self.events, "nothing can happen any more, and the batch is not complete"
            self.happens()
        self.check(batch)
        self.flights.hand_out(batch)
        self.trained += [flight.prompt.id for flight in batch]
        self.steps += 1
        updated = self.clock + self.random.expovariate(1.0)
        while self.events and self.events[0][0] < updated:
            self.happens()
            self.engine_works()
            self.grader_works()
        self.clock = updated
        fate = self.random.random()
        if fate < 0.3:
            self.saved = self.checkpoint()
        elif fate < 0.3 + self.kills:
            self.resume()

    def happens(self):
        self.clock, _, event, args = heapq.heappop(self.events)
        event(*args)

    def most_in_flight(self):
        return (self.limits.ahead + 1) * self.limits.groups + self.limits.extra

    # What must hold.

    def check(self, batch):
        assert len(batch) == self.limits.groups
        numbers = [flight.number for flight in batch]
        assert numbers == sorted(set(numbers))
        for flight in batch:
            assert flight.complete
            for sample, completion in enumerate(flight.completions):
                own = ((int(flight.prompt.id) * 100 + sample) * 100 + flight.restarts) * 10
                assert (completion.tokens == own + np.arange(6)).all()
                age = self.steps - completion.versions
                assert age.min() >= 0
                assert age.max() <= self.limits.max_staleness

    def accounted(self):
        """Checks that each prompt taken is trained on, rejected or in flight, exactly once."""
        in_flight = [flight.prompt.id for flight in self.flights.flights]
        places = Counter(self.trained + self.rejected + in_flight)
        assert places == Counter(str(i) for i in range(self.taken))

    # Checkpoints.

    def checkpoint(self):
        arrays = {}
        state = json.loads(json.dumps(without_arrays(self.flights.state(), arrays)))
        progress = (self.steps, self.taken, list(self.trained), list(self.rejected))
        return state, arrays, progress

    def resume(self):
        """Goes on from the last checkpoint, in another process."""
        state, arrays, (self.steps, self.taken, trained, rejected) = self.saved
        self.trained, self.rejected = list(trained), list(rejected)
        self.flights = Flights(limits=self.limits)
        self.flights.restore(with_arrays(state, arrays), self.prompt)
        self.events, self.calls, self.grading = [], [], {}


options = st.fixed_dictionaries(
    {
        "groups": st.integers(1, 4),
        "samples": st.integers(1, 3),
        "ahead": st.integers(0, 3),
        "extra": st.integers(0, 3),
        "more": st.integers(0, 2),  # steps of staleness beyond those that are needed
        "wait": st.booleans(),
        "on_new_weights": st.sampled_from(["finish", "abort", "continue"]),
        "faults": st.sampled_from([0.0, 0.2]),
        "rejects": st.sampled_from([0.0, 0.3]),
        "kills": st.sampled_from([0.0, 0.1]),
    }
)


@settings(max_examples=100)
@given(options=options, seed=st.integers(0, 2**32))
def test_simulated_runs_keep_the_rules(options, seed):
    """Tests 100 runs of 100 steps."""
    limits = Limits(
        groups=options["groups"],
        samples=options["samples"],
        ahead=options["ahead"],
        extra=options["extra"],
        max_staleness=options["ahead"] + bool(options["extra"]) + options["more"],
        wait=options["wait"],
        keep_tokens=options["on_new_weights"] != "abort",
        max_restarts=2,
        max_failures=50,
    )
    rest = ("on_new_weights", "faults", "rejects", "kills")
    run = Simulation(limits, seed, **{name: options[name] for name in rest})
    for _ in range(100):
        run.step()
        run.accounted()


LIMITS = Limits(
    groups=2,
    samples=2,
    ahead=1,
    extra=0,
    max_staleness=1,
    wait=True,
    keep_tokens=True,
    max_restarts=1,
    max_failures=1,
)


def begun(limits=LIMITS, version=0):
    """Flights whose groups have all been started by an engine."""
    flights = Flights(limits=limits)
    flights.admit(lambda count: [Prompted(id=str(i)) for i in range(count)])
    flights.start(99, version)
    return flights


def part(length=3, finish=Finish.STOP, version=0):
    return Completion(
        tokens=np.arange(length, dtype=np.int32),
        logprobs=np.zeros(length, np.float32),
        versions=np.full(length, version, np.int32),
        finish=finish,
    )


def finish(flights, *places):
    for flight in [flights.flights[place] for place in places]:
        flights.receive(flight, [part(), part()])
        flights.graded(flight, object(), keep=True)


def ids(flights):
    return None if flights is None else [flight.prompt.id for flight in flights]


def test_as_many_groups_start_as_the_steps_ahead_need():
    assert len(begun().flights) == 4
    assert len(begun(replace(LIMITS, ahead=0)).flights) == 2
    flights = begun(replace(LIMITS, extra=3))
    assert len(flights.flights) == 7
    flights.admit(lambda count: pytest.fail("there are enough"))
    flights.hand_out(flights.flights[:2])
    asked = []
    flights.admit(lambda count: asked.append(count) or [])
    assert asked == [2]


def test_groups_start_once_and_in_order():
    flights = Flights(limits=LIMITS)
    flights.admit(lambda count: [Prompted(id=str(i)) for i in range(count)])
    first = flights.start(3, 0)
    assert ids(first) == ["0", "1", "2"]
    assert ids(flights.start(3, 0)) == ["3"]
    flights.receive(first[1], [part(1, Finish.ABORT), None], interrupted=True)
    assert ids(flights.start(3, 0)) == ["1"]


@pytest.mark.parametrize("end", [Finish.STOP, Finish.ABORT])
def test_what_comes_for_a_group_that_was_restarted_is_ignored(end):
    """A call of the engine began before the restart, and ends after it."""
    flights = begun(replace(LIMITS, keep_tokens=False))
    former = flights.flights[1]
    flights.drop_old(2)
    before = flights.state()
    flights.receive(former, [part(2, end), part(3, end)], interrupted=True)
    assert flights.state() == before
    flights.graded(former, object(), keep=True)
    assert not any(flight.group for flight in flights.flights)


def test_without_extra_groups_a_step_waits_for_its_own():
    flights = begun()
    finish(flights, 1, 2, 3)
    assert flights.batch(0) is None
    finish(flights, 0)
    assert ids(flights.batch(0)) == ["0", "1"]


def test_the_place_of_a_rejected_group_goes_to_the_next_prompt():
    flights = begun()
    finish(flights, 0, 2)
    rejected = flights.flights[1]
    flights.receive(rejected, [part(), part()])
    flights.graded(rejected, object(), keep=False)
    assert ids(flights.batch(0)) == ["0", "2"]
    flights.admit(lambda count: [Prompted(id="4")] * count)
    assert flights.flights[-1].number == 4


def test_with_extra_groups_a_step_takes_the_first_finished_in_the_order_of_prompts():
    flights = begun(replace(LIMITS, extra=1, max_staleness=2))
    finish(flights, 3, 1, 0)
    assert ids(flights.batch(0)) == ["1", "3"]


@pytest.mark.parametrize(("wait", "batch"), [(True, None), (False, ["3", "4"])])
def test_a_step_waits_for_groups_that_would_be_too_old_afterwards(wait, batch):
    flights = begun(replace(LIMITS, extra=1, wait=wait, max_staleness=2))
    finish(flights, 1, 2)
    flights.hand_out(flights.batch(0))
    finish(flights, 1, 2)
    assert ids(flights.batch(1)) == ["3", "4"]  # there is one more step for group 0
    assert ids(flights.batch(2)) == batch
    finish(flights, 0)
    assert ids(flights.batch(2)) == (["0", "3"] if wait else ["3", "4"])


def test_a_group_that_was_restarted_often_is_waited_for():
    flights = begun(replace(LIMITS, extra=1, wait=False, max_staleness=1))
    finish(flights, 1, 2, 3, 4)
    flights.drop_old(2)
    assert flights.counts == {"too_old": 5}
    flights.start(99, 2)
    finish(flights, 1, 2)
    assert flights.batch(3) is None  # group 0 is of version 2, and has been restarted


def test_too_old_groups_start_again_and_what_comes_for_them_is_ignored():
    flights = begun()
    old = flights.flights[0]
    finish(flights, 1)
    flights.drop_old(1)
    assert flights.counts == {}
    flights.drop_old(2)
    assert flights.counts == {"too_old": 4}
    new = flights.flights[0]
    assert (new.number, new.prompt, new.restarts) == (0, old.prompt, 1)
    assert new.completions == [None, None]
    flights.receive(old, [part(), part()])
    flights.graded(old, object(), keep=False)
    assert flights.flights[0] is new
    assert new.completions == [None, None]


@pytest.mark.parametrize(("keep_tokens", "lengths"), [(True, [2, 3]), (False, [])])
def test_an_interrupted_group_keeps_its_tokens_or_starts_again(keep_tokens, lengths):
    flights = begun(replace(LIMITS, keep_tokens=keep_tokens))
    parts = [part(2, Finish.ABORT), part(3)]
    flights.receive(flights.flights[0], parts, interrupted=True)
    found = flights.flights[0]
    assert [len(x.tokens) for x in found.completions if x] == lengths
    assert found.restarts == (not keep_tokens)
    assert flights.counts == ({} if keep_tokens else {"aborted": 1})
    flights.start(1, 5)
    more = [part(1, Finish.ABORT, 5), None if keep_tokens else part(3, version=5)]
    flights.receive(found, more, interrupted=True)
    # It may be restarted once, so from now on it keeps its tokens.
    versions = [x.versions.tolist() for x in flights.flights[0].completions]
    assert versions == ([[0, 0, 5], [0, 0, 0]] if keep_tokens else [[5], [5, 5, 5]])
    assert flights.flights[0].oldest == (0 if keep_tokens else 5)


def test_an_engine_that_returns_nothing_again_and_again_is_found_out():
    flights = begun()
    nothing = [part(0, Finish.ABORT), part(0, Finish.ABORT)]
    for interrupted in (True, False):
        flights.receive(flights.flights[0], nothing, interrupted=interrupted)
        assert flights.failed() is None
        flights.start(1, 0)
    flights.receive(flights.flights[0], nothing)
    assert flights.failed() is flights.flights[0]
    flights.start(1, 0)
    flights.receive(flights.flights[0], [part(1, Finish.ABORT), nothing[0]])
    assert flights.failed() is None


def test_the_oldest_token_is_that_of_any_sample_or_of_the_call_under_way():
    flights = begun(version=3)
    flight = flights.flights[0]
    assert flight.oldest == 3
    flights.receive(flight, [part(1, Finish.ABORT, 3), part(2, Finish.ABORT, 2)], interrupted=True)
    assert flight.oldest == 2


def test_a_restored_state_has_all_tokens_and_nothing_under_way():
    flights = begun()
    flights.receive(flights.flights[0], [part(2, Finish.ABORT), part(3)], interrupted=True)
    flights.flights[2] = flights.flights[2].restarted()
    flights.flights[3].prompt = Prompted(id="3", drawn_by="replay")
    finish(flights, 1)
    arrays = {}
    state = json.loads(json.dumps(without_arrays(flights.state(), arrays)))
    restored = Flights(limits=LIMITS)
    restored.restore(with_arrays(state, arrays), lambda id: Prompted(id=id))
    assert restored.next_number == 4
    assert not any(flight.sampling or flight.group for flight in restored.flights)
    for old, new in zip(flights.flights, restored.flights, strict=True):
        kept = ("number", "prompt", "restarts", "failures", "order")
        assert [getattr(old, name) for name in kept] == [getattr(new, name) for name in kept]
        for a, b in zip(old.completions, new.completions, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                assert a.finish == b.finish
                for name in ("tokens", "logprobs", "versions"):
                    np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    assert ids(restored.to_grade()) == ["1"]
