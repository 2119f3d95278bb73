"""Tests pending groups in simulated runs: random delays, faults, restarts and resumed runs."""

import heapq
import json
import random
from collections import Counter
from dataclasses import dataclass, replace
from types import SimpleNamespace

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given, settings

from rl4p.base.types import Finish
from rl4p.loop.pending_groups import (
    PendingGroup,
    PendingGroups,
    PendingLimits,
    finished_groups,
    keys_of,
    requests_for,
)
from rl4p.protocols.engine import Completion
from rl4p.rollout.sampler import sequence_keys
from rl4p.runs.checkpoint import with_arrays, without_arrays


@dataclass(frozen=True)
class Prompted:
    """The fields of a prompt that pending read."""

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
        self.pending, self.taken, self.version = PendingGroups(limits=limits), 0, -1
        self.calls = []  # of the engine: (call id, pending, version)
        self.grading = {}
        self.trained, self.rejected = [], []
        self.steps = 0
        self.saved = self.checkpoint()

    # The collector's rules, without threads.

    def take(self, count, repeated):
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
            groups := self.pending.start(self.random.randint(1, 4), self.version)
        ):
            call = SimpleNamespace(groups=groups, version=self.version)
            self.calls.append(call)
            self.later(self.ends, call, False)

    def grader_works(self):
        for group in self.pending.to_grade():
            if id(group) not in self.grading:
                self.grading[id(group)] = group
                self.later(self.grades, group)

    def ends(self, call, interrupted):
        if call not in self.calls:
            return
        self.calls.remove(call)
        for group in call.groups:
            parts = [
                self.part(group, sample, before, call.version, interrupted)
                for sample, before in enumerate(group.completions)
            ]
            self.pending.receive(group, parts, interrupted=interrupted)

    def part(self, group, sample, before, version, interrupted):
        """Returns what a call adds to a sample: all of its rest, some of it, or nothing."""
        if before is not None and before.finish != Finish.ABORT:
            return None
        start = 0 if before is None else len(before.tokens)
        length, fault = 6 - start, self.random.random()
        if interrupted or fault < self.faults:
            length = self.random.randint(0, length - 1)
        finish = Finish.STOP if start + length == 6 else Finish.ABORT
        places = np.arange(start, start + length)
        tokens = ((int(group.prompt.id) * 100 + sample) * 100 + group.restarts) * 10 + places
        return Completion(
            tokens=tokens.astype(np.int64),
            logprobs=np.zeros(length, np.float32),
            versions=np.full(length, version, np.int32),
            finish=finish,
        )

    def grades(self, group):
        self.grading.pop(id(group))
        if group in self.pending.groups:
            keep = self.random.random() >= self.rejects
            self.pending.graded(group, object(), keep=keep)
            if not keep:
                self.rejected.append(group.prompt.id)

    def publish(self):
        self.version = self.steps
        if self.on_new_weights != "finish":
            for call in list(self.calls):
                self.ends(call, True)

    def step(self):
        """Runs one step of the loop: publish, wait, train, and perhaps save or be killed."""
        self.publish()
        self.pending.drop_old(self.steps)
        while True:
            self.pending.admit(self.take)
            self.engine_works()
            self.grader_works()
            assert all(x.failures <= self.limits.max_failures for x in self.pending.groups)
            assert len(self.pending.groups) <= self.most_in_flight()
            if (batch := self.pending.batch(self.steps)) is not None:
                break
            assert self.events, "nothing can happen any more, and the batch is not complete"
            self.happens()
        self.check(batch)
        self.pending.hand_out(batch)
        self.trained += [group.prompt.id for group in batch]
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
        numbers = [group.number for group in batch]
        assert numbers == sorted(set(numbers))
        for group in batch:
            assert group.complete
            for sample, completion in enumerate(group.completions):
                own = ((int(group.prompt.id) * 100 + sample) * 100 + group.restarts) * 10
                assert (completion.tokens == own + np.arange(6)).all()
                age = self.steps - completion.versions
                assert age.min() >= 0
                assert age.max() <= self.limits.max_staleness

    def accounted(self):
        """Checks that each prompt taken is trained on, rejected or pending, exactly once."""
        in_flight = [group.prompt.id for group in self.pending.groups]
        places = Counter(self.trained + self.rejected + in_flight)
        assert places == Counter(str(i) for i in range(self.taken))

    # Checkpoints.

    def checkpoint(self):
        arrays = {}
        state = json.loads(json.dumps(without_arrays(self.pending.state(), arrays)))
        progress = (self.steps, self.taken, list(self.trained), list(self.rejected))
        return state, arrays, progress

    def resume(self):
        """Goes on from the last checkpoint, in another process."""
        state, arrays, (self.steps, self.taken, trained, rejected) = self.saved
        self.trained, self.rejected = list(trained), list(rejected)
        self.pending = PendingGroups(limits=self.limits)
        self.pending.restore(with_arrays(state, arrays), self.prompt)
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


@pytest.mark.slow
@settings(max_examples=100)
@given(options=options, seed=st.integers(0, 2**32))
def test_simulated_runs_keep_the_rules(options, seed):
    """Tests 100 runs of 100 steps."""
    limits = PendingLimits(
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


LIMITS = PendingLimits(
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
    """PendingGroups whose groups have all been started by an engine."""
    pending = PendingGroups(limits=limits)
    pending.admit(lambda count, repeated: [Prompted(id=str(i)) for i in range(count)])
    pending.start(99, version)
    return pending


def part(length=3, finish=Finish.STOP, version=0):
    return Completion(
        tokens=np.arange(length, dtype=np.int32),
        logprobs=np.zeros(length, np.float32),
        versions=np.full(length, version, np.int32),
        finish=finish,
    )


def finish(pending, *places):
    for group in [pending.groups[place] for place in places]:
        pending.receive(group, [part(), part()])
        pending.graded(group, object(), keep=True)


def ids(pending):
    return None if pending is None else [group.prompt.id for group in pending]


def test_as_many_groups_start_as_the_steps_ahead_need():
    assert len(begun().groups) == 4
    assert len(begun(replace(LIMITS, ahead=0)).groups) == 2
    pending = begun(replace(LIMITS, extra=3))
    assert len(pending.groups) == 7
    pending.admit(lambda count, repeated: pytest.fail("there are enough"))
    pending.hand_out(pending.groups[:2])
    asked = []
    pending.admit(lambda count, repeated: asked.append(count) or [])
    assert asked == [2]


def test_groups_start_once_and_in_order():
    pending = PendingGroups(limits=LIMITS)
    pending.admit(lambda count, repeated: [Prompted(id=str(i)) for i in range(count)])
    first = pending.start(3, 0)
    assert ids(first) == ["0", "1", "2"]
    assert ids(pending.start(3, 0)) == ["3"]
    pending.receive(first[1], [part(1, Finish.ABORT), None], interrupted=True)
    assert ids(pending.start(3, 0)) == ["1"]


@pytest.mark.parametrize("end", [Finish.STOP, Finish.ABORT])
def test_what_comes_for_a_group_that_was_restarted_is_ignored(end):
    """A call of the engine began before the restart, and ends after it."""
    pending = begun(replace(LIMITS, keep_tokens=False))
    former = pending.groups[1]
    pending.drop_old(2)
    before = pending.state()
    pending.receive(former, [part(2, end), part(3, end)], interrupted=True)
    assert pending.state() == before
    pending.graded(former, object(), keep=True)
    assert not any(group.group for group in pending.groups)


def test_without_extra_groups_a_step_waits_for_its_own():
    pending = begun()
    finish(pending, 1, 2, 3)
    assert pending.batch(0) is None
    finish(pending, 0)
    assert ids(pending.batch(0)) == ["0", "1"]


def test_the_place_of_a_rejected_group_goes_to_the_next_prompt():
    pending = begun()
    finish(pending, 0, 2)
    rejected = pending.groups[1]
    pending.receive(rejected, [part(), part()])
    pending.graded(rejected, object(), keep=False)
    assert ids(pending.batch(0)) == ["0", "2"]
    pending.admit(lambda count, repeated: [Prompted(id="4")] * count)
    assert pending.groups[-1].number == 4


def test_with_extra_groups_a_step_takes_the_first_finished_in_the_order_of_prompts():
    pending = begun(replace(LIMITS, extra=1, max_staleness=2))
    finish(pending, 3, 1, 0)
    assert ids(pending.batch(0)) == ["1", "3"]


@pytest.mark.parametrize(("wait", "batch"), [(True, None), (False, ["3", "4"])])
def test_a_step_waits_for_groups_that_would_be_too_old_afterwards(wait, batch):
    pending = begun(replace(LIMITS, extra=1, wait=wait, max_staleness=2))
    finish(pending, 1, 2)
    pending.hand_out(pending.batch(0))
    finish(pending, 1, 2)
    assert ids(pending.batch(1)) == ["3", "4"]  # there is one more step for group 0
    assert ids(pending.batch(2)) == batch
    finish(pending, 0)
    assert ids(pending.batch(2)) == (["0", "3"] if wait else ["3", "4"])


def test_a_group_that_was_restarted_often_is_waited_for():
    pending = begun(replace(LIMITS, extra=1, wait=False, max_staleness=1))
    finish(pending, 1, 2, 3, 4)
    pending.drop_old(2)
    assert pending.counts == {"too_old": 5}
    pending.start(99, 2)
    finish(pending, 1, 2)
    assert pending.batch(3) is None  # group 0 is of version 2, and has been restarted


def test_too_old_groups_start_again_and_what_comes_for_them_is_ignored():
    pending = begun()
    old = pending.groups[0]
    finish(pending, 1)
    pending.drop_old(1)
    assert pending.counts == {}
    pending.drop_old(2)
    assert pending.counts == {"too_old": 4}
    new = pending.groups[0]
    assert (new.number, new.prompt, new.restarts) == (0, old.prompt, 1)
    assert new.completions == [None, None]
    pending.receive(old, [part(), part()])
    pending.graded(old, object(), keep=False)
    assert pending.groups[0] is new
    assert new.completions == [None, None]


@pytest.mark.parametrize(("keep_tokens", "lengths"), [(True, [2, 3]), (False, [])])
def test_an_interrupted_group_keeps_its_tokens_or_starts_again(keep_tokens, lengths):
    pending = begun(replace(LIMITS, keep_tokens=keep_tokens))
    parts = [part(2, Finish.ABORT), part(3)]
    pending.receive(pending.groups[0], parts, interrupted=True)
    found = pending.groups[0]
    assert [len(x.tokens) for x in found.completions if x] == lengths
    assert found.restarts == (not keep_tokens)
    assert pending.counts == ({} if keep_tokens else {"aborted": 1})
    pending.start(1, 5)
    more = [part(1, Finish.ABORT, 5), None if keep_tokens else part(3, version=5)]
    pending.receive(found, more, interrupted=True)
    # It may be restarted once, so from now on it keeps its tokens.
    versions = [x.versions.tolist() for x in pending.groups[0].completions]
    assert versions == ([[0, 0, 5], [0, 0, 0]] if keep_tokens else [[5], [5, 5, 5]])
    assert pending.groups[0].oldest == (0 if keep_tokens else 5)


def test_an_engine_that_returns_nothing_again_and_again_is_found_out():
    pending = begun()
    nothing = [part(0, Finish.ABORT), part(0, Finish.ABORT)]
    for interrupted in (True, False):
        pending.receive(pending.groups[0], nothing, interrupted=interrupted)
        assert pending.groups[0].failures == (not interrupted)
        pending.start(1, 0)
    pending.receive(pending.groups[0], nothing)
    assert pending.groups[0].failures == 2 > LIMITS.max_failures
    pending.start(1, 0)
    pending.receive(pending.groups[0], [part(1, Finish.ABORT), nothing[0]])
    assert pending.groups[0].failures == 0


def test_the_oldest_token_is_that_of_any_sample_or_of_the_call_under_way():
    pending = begun(version=3)
    group = pending.groups[0]
    assert group.oldest == 3
    pending.receive(group, [part(1, Finish.ABORT, 3), part(2, Finish.ABORT, 2)], interrupted=True)
    assert group.oldest == 2


def test_a_restored_state_has_all_tokens_and_nothing_under_way():
    pending = begun()
    pending.receive(pending.groups[0], [part(2, Finish.ABORT), part(3)], interrupted=True)
    pending.restart(pending.groups[2], "too_old")
    pending.groups[3].prompt = Prompted(id="3", drawn_by="replay")
    finish(pending, 1)
    arrays = {}
    state = json.loads(json.dumps(without_arrays(pending.state(), arrays)))
    restored = PendingGroups(limits=LIMITS)
    restored.restore(with_arrays(state, arrays), lambda id: Prompted(id=id))
    assert restored.next_number == 4
    assert not any(group.sampling or group.group for group in restored.groups)
    for old, new in zip(pending.groups, restored.groups, strict=True):
        kept = ("number", "prompt", "restarts", "failures", "order")
        assert [getattr(old, name) for name in kept] == [getattr(new, name) for name in kept]
        for a, b in zip(old.completions, new.completions, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                assert a.finish == b.finish
                for name in ("tokens", "logprobs", "versions"):
                    np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    assert ids(restored.to_grade()) == ["1"]


KEY = jax.random.key(7)


@pytest.fixture
def make_group(make_prompt):
    def make(number=0, completions=(None, None), **fields):
        prompt = make_prompt(tokens=(5, 6, 7))
        return PendingGroup(number=number, prompt=prompt, completions=list(completions), **fields)

    return make


def partial_completion(*tokens, finish=Finish.ABORT):
    length = len(tokens)
    return Completion(
        tokens=np.int32(tokens),
        logprobs=np.zeros(length, np.float32),
        versions=np.zeros(length, np.int32),
        finish=finish,
    )


@pytest.mark.parametrize("step", [0, 2])
def test_the_keys_are_those_of_a_synchronous_step(make_group, step):
    of_step = jax.random.fold_in(jax.random.fold_in(KEY, step), 0)
    expected = np.asarray(sequence_keys(of_step, 3 * 2)).reshape(3, 2, -1)
    for place in range(3):
        found = keys_of(make_group(number=3 * step + place), KEY, groups=3)
        np.testing.assert_array_equal(found, expected[place])


def test_keys_are_new_after_each_restart(make_group):
    keys = [
        keys_of(make_group(number=number, restarts=restarts), KEY, groups=2)
        for number in range(4)
        for restarts in range(3)
    ]
    assert len({key.tobytes() for pair in keys for key in pair}) == 2 * 4 * 3


def test_keys_of_restarts_differ_from_the_keys_of_tokens(make_group):
    """A sampler folds the place of a token into the key of its sequence."""
    first = jax.random.wrap_key_data(keys_of(make_group(), KEY, groups=2))
    tokens = {
        np.asarray(jax.random.key_data(jax.random.fold_in(key, place))).tobytes()
        for place in range(64)
        for key in first
    }
    restarts = [keys_of(make_group(restarts=n), KEY, groups=2) for n in range(1, 16)]
    assert len(tokens) == 2 * 64
    assert not tokens & {key.tobytes() for pair in restarts for key in pair}


def test_a_group_without_tokens_is_one_request(make_group):
    groups = [make_group(number=4), make_group(number=5, completions=(partial_completion(), None))]
    requests, places = requests_for(groups, KEY, 2, 10)
    assert places == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for request, pending in zip(requests, groups, strict=True):
        assert (request.tokens, request.max_tokens, request.drawn) == ((5, 6, 7), 10, 0)
        np.testing.assert_array_equal(request.keys_N, keys_of(pending, KEY, 2))


def test_unfinished_samples_go_on_where_they_stopped(make_group):
    completions = (partial_completion(1, 2), partial_completion(3, finish=Finish.STOP), None)
    pending = make_group(completions=completions)
    requests, places = requests_for([pending], KEY, 2, 10)
    assert places == [(0, 0), (0, 2)]
    first, last = requests
    assert (first.tokens, first.max_tokens, first.drawn) == ((5, 6, 7, 1, 2), 8, 2)
    assert (last.tokens, last.max_tokens, last.drawn) == ((5, 6, 7), 10, 0)
    keys_G = keys_of(pending, KEY, 2)
    np.testing.assert_array_equal(first.keys_N, keys_G[:1])
    np.testing.assert_array_equal(last.keys_N, keys_G[2:])


def test_a_group_is_finished_once_all_its_samples_are():
    places = [(0, 0), (0, 1), (1, 0), (2, 1)]
    for finished, count in (
        ([0, 0, 0, 0], 0),
        ([1, 0, 0, 0], 0),
        ([1, 1, 0, 0], 1),
        ([1, 1, 1, 0], 2),
        ([0, 1, 1, 1], 2),
        ([1, 1, 1, 1], 3),
    ):
        assert finished_groups(places, np.array(finished, bool)) == count


def test_a_completion_that_goes_on_keeps_the_experts_that_drew_it(make_group):
    """Also in a restored state; without a record of both parts there is none."""

    def recorded(experts, *tokens, finish=Finish.ABORT):
        part = partial_completion(*tokens, finish=finish)
        return replace(part, experts=np.array(experts, np.uint8)[:, None])

    def begin():
        pending = PendingGroups(limits=LIMITS)
        pending.groups.append(make_group())
        first = [recorded([1, 2, 3, 4, 0], 4, 5), recorded([6, 6, 6, 0], 9)]
        pending.receive(pending.groups[0], first, interrupted=True)
        return pending

    def go_on(pending):
        parts = [recorded([9] * 6 + [0], 6, 2, finish=Finish.STOP), recorded([5] * 5, 1)]
        pending.receive(pending.groups[0], parts)
        return [x.experts[:, 0].tolist() for x in pending.groups[0].completions]

    assert go_on(begin()) == [[1, 2, 3, 4, 9, 9, 0], [6, 6, 6, 5, 5]]
    arrays = {}
    state = json.loads(json.dumps(without_arrays(begin().state(), arrays)))
    restored = PendingGroups(limits=LIMITS)
    prompt = begin().groups[0].prompt
    restored.restore(with_arrays(state, arrays), lambda id: prompt)
    assert go_on(restored) == [[1, 2, 3, 4, 9, 9, 0], [6, 6, 6, 5, 5]]
    unrecorded = begin()
    parts = [partial_completion(6), partial_completion(1)]
    unrecorded.receive(unrecorded.groups[0], parts)
    assert [x.experts for x in unrecorded.groups[0].completions] == [None, None]
