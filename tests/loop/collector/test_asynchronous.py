"""Tests a collector with threads, on a real engine."""

import ast
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace

import jax
import numpy as np
import pytest

from rl4p.advantage.grpo import GRPO
from rl4p.base.errors import InputError, RunError
from rl4p.base.types import Finish
from rl4p.engine import in_process
from rl4p.learner.optimizer import AdamW
from rl4p.loop.cache import SuccessCache
from rl4p.loop.collector.asynchronous import Asynchronous, open_engine
from rl4p.loop.collector.synchronous import Synchronous
from rl4p.loop.filter import Deviation
from rl4p.loop.loop import Loop, train
from rl4p.loop.source import PromptStream
from rl4p.reward.answers import Correct
from rl4p.reward.weighted import Weighted
from rl4p.rollout.continuous import Continuous
from rl4p.rollout.demonstrations import Demonstrations
from rl4p.rollout.naive_sampler import NaiveSampler
from rl4p.update.ppo import PPO

pytestmark = pytest.mark.mixed_dtypes

P, G, R = 2, 2, 8


@dataclass(frozen=True, kw_only=True)
class Vowels:
    """A term that differs between random responses; `wait` is called first."""

    wait: object = None
    weight: float = 1.0

    def __call__(self, episodes):
        if self.wait is not None:
            self.wait()
        return [float(sum(map(ord, episode.response)) % 99) for episode in episodes]


@dataclass(frozen=True, kw_only=True)
class Always:
    """A term with one reward for all."""

    reward: float
    weight: float = 1.0

    def __call__(self, episodes):
        return [self.reward] * len(episodes)


@pytest.fixture
def first_state(make_state, params):
    return lambda: make_state(params, AdamW(learning_rate=1e-2))


@pytest.fixture
def make_loop(policy, make_phases, make_prompt):
    """A loop over 20 short prompts, which notes the ids of each step."""

    def make(collector, steps=4, rollout=None, term=None, **loop):
        prompts = [make_prompt(id=str(i), tokens=(65 + i, 66, 67)[: 1 + i % 3]) for i in range(20)]
        phases = make_phases(
            rollout=rollout or Continuous(max_response_tokens=R),
            reward=Weighted(terms={"vowels": term or Vowels()}),
            advantage=GRPO(),
            update=PPO(),
            **loop,
        )
        source = PromptStream(prompts, 0)
        opened = collector.open(phases, policy, source, prompts_per_step=P, group_size=G)
        return Loop(
            policy=policy,
            phases=phases,
            source=source,
            collector=opened,
            optimizer=AdamW(learning_rate=1e-2),
            group_size=G,
            steps=steps,
        )

    return make


@pytest.fixture
def run(make_loop, first_state):
    """Runs all steps; returns the step records and the order of the prompts."""

    def run(collector, pause=0.0, **options):
        loop = make_loop(collector, **options)
        order = [prompt.id for prompt in PromptStream(loop.source.prompts, 0).take(99, 0)]
        try:
            steps = []
            for info in train(loop, first_state()):
                params = jax.device_get(info.state.params)
                steps.append(replace(info, state=None, advantages_BT=params))
                time.sleep(pause)
        finally:
            loop.collector.close()
        return steps, order

    return run


@pytest.mark.slow
def test_no_array_of_a_state_is_kept(make_loop, first_state):
    """The update donates them, while the engine goes on."""
    loop, state = make_loop(Asynchronous(ahead=1)), first_state()
    loop.collector.collect(state)
    jax.tree.map(lambda x: x.delete(), state)
    with loop.collector.condition:
        kept = loop.collector.key, loop.collector.engine.weights.params
        assert not any(x.is_deleted() for x in jax.tree.leaves(kept))
    again = replace(first_state(), step=jax.numpy.int32(1))
    assert len(loop.collector.collect(again).episodes) == P * G
    loop.collector.close()


def ids(info):
    return [episode.prompt.id for episode in info.episodes[::G]]


def numbers(info):
    return {name: x for name, x in info.metrics.items() if not name.startswith(("time/", "coll"))}


@pytest.mark.slow
def test_without_a_step_ahead_a_run_is_synchronous_bit_for_bit(run, equal):
    ours, _ = run(Asynchronous(ahead=0))
    theirs, _ = run(Synchronous())
    for a, b in zip(ours, theirs, strict=True):
        equal(a.advantages_BT, b.advantages_BT)  # the parameters
        equal(jax.device_get(a.trajectories), jax.device_get(b.trajectories))
        assert a.episodes == b.episodes
        metrics = numbers(a)
        assert metrics.pop("staleness/share_0") == 1
        assert metrics == {n: x for n, x in numbers(b).items() if "tokens_per_second" not in n} | {
            n: x for n, x in metrics.items() if "tokens_per_second" in n
        }
        assert metrics["update/grad_norm"] > 0
    assert not np.array_equal(ours[0].trajectories.tokens_BT, ours[1].trajectories.tokens_BT)


@pytest.mark.quick(1)
@pytest.mark.parametrize("ahead", [1, 2])
def test_a_run_ahead_takes_the_same_prompts_with_older_weights(run, ahead):
    steps, order = run(Asynchronous(ahead=ahead), steps=6)
    for step, info in enumerate(steps):
        assert ids(info) == order[P * step : P * step + P]
        assert info.metrics["staleness/max"] <= min(step, ahead)
        assert info.metrics["update/grad_norm"] > 0
    assert steps[-1].metrics["staleness/max"] > 0
    assert "rollout/logprob_gap_max" in steps[0].metrics
    assert "rollout/logprob_gap_max" not in steps[-1].metrics  # all tokens are of older weights
    if ahead == 1:
        assert {info.metrics["staleness/max"] for info in steps[1:]} == {1}


@pytest.mark.slow
def test_an_interrupted_response_goes_on_with_new_weights(run, monkeypatch):
    """The engine can stop after each token, and new weights arrive after a few of them."""
    monkeypatch.setattr("rl4p.engine.in_process.BETWEEN_STOPS", 1)
    slow = Slow(max_response_tokens=R)
    steps, order = run(
        Asynchronous(ahead=1, max_staleness=9, on_new_weights="continue"),
        steps=5,
        rollout=slow,
        pause=0.15,
    )
    several = 0
    for step, info in enumerate(steps):
        assert ids(info) == order[P * step : P * step + P]
        versions, mask = (
            np.asarray(x)
            for x in (info.trajectories.policy_version_BT, info.trajectories.response_mask_BT)
        )
        for version, own in zip(versions, mask, strict=True):
            assert (np.diff(version[own]) >= 0).all()
            several += len(np.unique(version[own])) > 1
        assert (mask.sum(axis=1) > 0).all()
        assert not (np.asarray(info.trajectories.finish_B) == Finish.ABORT).any()
    assert several


@dataclass(frozen=True, kw_only=True)
class Slow(Continuous):
    """A sampler whose engine takes a while for each token, so that updates overtake it."""

    seconds: float = 0.05

    def open(self, policy):
        engine = super().open(policy)
        complete = engine.complete

        def slowed(requests, *, greedy=False, stop=None):
            def waited(finished):
                time.sleep(self.seconds)
                return stop is not None and stop(finished)

            return complete(requests, greedy=greedy, stop=waited)

        engine.complete = slowed
        return engine


def test_an_aborted_group_starts_again(run, monkeypatch):
    monkeypatch.setattr("rl4p.engine.in_process.BETWEEN_STOPS", 1)
    collector = Asynchronous(ahead=1, on_new_weights="abort", max_restarts=2)
    steps, order = run(collector, steps=5, rollout=Slow(max_response_tokens=R), pause=0.15)
    for step, info in enumerate(steps):
        assert ids(info) == order[P * step : P * step + P]
    assert sum(info.metrics["collector/aborted"] for info in steps) > 0


@pytest.mark.slow
@pytest.mark.parametrize("on_new_weights", ["continue", "abort"])
def test_with_over_sampling_a_step_does_not_wait_for_the_longest_responses(
    make_loop, first_state, monkeypatch, on_new_weights
):
    """Some prompts are answered with one token; the first P groups that are done are trained."""
    monkeypatch.setattr(in_process, "BETWEEN_STOPS", 1)
    unfinished = []  # completions of each call

    class Short(Continuous):
        """Every other request may have a single token."""

        def open(self, policy):
            engine = super().open(policy)
            complete = engine.complete

            def shortened(requests, **options):
                asked = [
                    replace(x, max_tokens=1 if x.tokens[0] % 2 and not x.drawn else x.max_tokens)
                    for x in requests
                ]
                found = complete(asked, **options)
                unfinished.append(sum(x.finish == Finish.ABORT for x in found))
                return found

            engine.complete = shortened
            return engine

    options = {"over_sampling": 3.0, "on_new_weights": on_new_weights, "ahead": 0}
    loop = make_loop(Asynchronous(**options), rollout=Short(max_response_tokens=R))
    collected = loop.collector.collect(first_state())
    loop.collector.close()
    assert len({episode.prompt.id for episode in collected.episodes}) == P
    assert {episode.tokens for episode in collected.episodes} == {1}
    assert unfinished[0] > 0


def test_over_sampling_loses_no_prompt(run):
    steps, order = run(Asynchronous(ahead=1, over_sampling=2.0), steps=6)
    trained = [id for info in steps for id in ids(info)]
    assert len(set(trained)) == len(trained) == 12
    assert set(trained) <= set(order[: 12 + 3 * P])
    for info in steps:
        places = [order.index(id) for id in ids(info)]
        assert places == sorted(places)
        assert info.metrics["staleness/max"] <= 2


@pytest.mark.slow
def test_rejected_groups_are_replaced_and_credited(make_loop, first_state):
    loop = make_loop(Asynchronous(ahead=0, filters={"deviation": Deviation(above=10)}), steps=3)
    credited = []
    loop.source.credit = lambda step, episodes, rewards: credited.append(
        (step, [episode.prompt.id for episode in episodes[::G]], rewards.total_B.reshape(-1, G))
    )
    rejected = trained = 0
    for info in train(loop, first_state()):
        (step, asked, rewards_PG) = credited.pop()
        assert step == info.step - 1
        assert asked[:P] == ids(info)
        assert (rewards_PG[:P].std(axis=1) > 10).all()
        assert (rewards_PG[P:].std(axis=1) <= 10).all()
        rejected, trained = rejected + len(asked) - P, trained + P
        assert info.metrics["collector/rejected"] == len(asked) - P
    loop.collector.close()
    assert rejected
    assert loop.source.offset == rejected + trained


def test_a_step_stops_filtering_after_its_rounds(run):
    never = Deviation(above=1e9)
    steps, _ = run(Asynchronous(ahead=0, filters={"never": never}, rounds=2), steps=2)
    assert [info.metrics["collector/rejected"] for info in steps] == [2 * P] * 2


@pytest.mark.quick(1)
@pytest.mark.parametrize("on_new_weights", ["finish", "continue"])
def test_a_resumed_run_trains_on_the_same_prompts(make_loop, first_state, on_new_weights):
    collector = Asynchronous(ahead=2, on_new_weights=on_new_weights)
    loop = make_loop(collector, steps=6)
    order = [prompt.id for prompt in PromptStream(loop.source.prompts, 0).take(99, 0)]
    for info in train(loop, first_state()):
        if info.step == 2:
            break
    saved = loop.source.state(), loop.collector.state()
    state = jax.tree.map(lambda x: x, info.state)
    loop.collector.close()
    resumed = make_loop(collector, steps=6)
    resumed.source.restore(saved[0])
    resumed.collector.restore(saved[1])
    trained = [ids(info) for info in train(resumed, state)]
    resumed.collector.close()
    assert trained == [order[P * step : P * step + P] for step in range(2, 6)]


@dataclass(frozen=True, kw_only=True)
class Broken(Continuous):
    """A sampler whose engine fails, returns nothing, or never returns."""

    how: str = "fails"
    released: threading.Event = field(default_factory=threading.Event, hash=False, compare=False)

    def open(self, policy):
        engine = super().open(policy)
        complete = engine.complete

        def broken(requests, **options):
            if self.how == "fails":
                raise RuntimeError("The engine has lost its connection.")
            if self.how == "hangs":
                self.released.wait(60)
            return [
                replace(x, tokens=x.tokens[:0], logprobs=x.logprobs[:0], versions=x.versions[:0],
                        finish=Finish.ABORT)
                for x in complete(requests, **options)
            ]  # fmt: skip

        engine.complete = broken
        return engine


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("fails", RuntimeError, "lost its connection"),
        ("nothing", RunError, "returned nothing for the prompt [0-9]+ 3 times in a row"),
        (
            "hangs",
            RunError,
            "waited 0.5 seconds .* of 4 pending groups, 2 are with the",
        ),
    ],
)
def test_an_engine_that_does_not_answer_ends_the_run(make_loop, first_state, how, error, message):
    rollout = Broken(max_response_tokens=R, how=how)
    loop = make_loop(Asynchronous(max_failures=2, patience=0.5), rollout=rollout)
    with pytest.raises(error, match=message):
        next(train(loop, first_state()))
    loop.collector.close()  # it does not wait for a thread that hangs
    assert any(thread.is_alive() for thread in loop.collector.threads) == (how == "hangs")
    rollout.released.set()
    for thread in loop.collector.threads:
        thread.join(30)


def test_an_error_of_a_grader_ends_the_run(make_loop, first_state):
    def wait():
        raise RunError("The judge is gone.")

    loop = make_loop(Asynchronous(), term=Vowels(wait=wait))
    with pytest.raises(RunError, match=r"The judge is gone\."):
        next(train(loop, first_state()))
    loop.collector.close()


def test_groups_are_graded_while_others_are_sampled(run):
    """The first call of the grader waits until the engine has begun its second call."""
    second, calls = threading.Event(), []

    @dataclass(frozen=True, kw_only=True)
    class Announced(Continuous):
        def open(self, policy):
            engine = super().open(policy)
            complete = engine.complete

            def announced(requests, **options):
                calls.append(1)
                if len(calls) == 2:
                    second.set()
                return complete(requests, **options)

            engine.complete = announced
            return engine

    def wait():
        assert second.wait(60)

    steps, _ = run(Asynchronous(ahead=1), steps=1, rollout=Announced(max_response_tokens=R),
                   term=Vowels(wait=wait))  # fmt: skip
    assert len(steps) == 1


def test_solutions_are_stored_and_saved(make_loop, first_state):
    cache = SuccessCache(term=None)
    loop = make_loop(Asynchronous(ahead=0, cache=cache), steps=1)
    next(train(loop, first_state()))
    state = loop.collector.state()
    loop.collector.close()
    assert state["cache"]["ids"]
    other = make_loop(Asynchronous(ahead=0, cache=cache))
    other.collector.restore(state)
    assert list(other.collector.cache.solutions) == state["cache"]["ids"]
    other.collector.close()


def test_a_source_is_credited_with_what_the_policy_did_and_not_with_the_cache(
    make_loop, first_state
):
    """The cache has a solution for each prompt of the step, and all of its own samples fail."""
    asynchronous = Asynchronous(ahead=0, cache=SuccessCache(term=None))
    right = make_loop(asynchronous, steps=1, term=Always(reward=1.0))
    right.collector.collect(first_state())
    failing = make_loop(asynchronous, steps=1, term=Always(reward=0.0))
    failing.collector.cache.restore(right.collector.cache.state())
    credited = []
    failing.source.credit = lambda step, episodes, rewards: credited.append(
        ([episode.response for episode in episodes], rewards.total_B.tolist())
    )
    collected = failing.collector.collect(first_state())
    for loop in (right, failing):
        loop.collector.close()
    assert collected.metrics["collector/from_cache"] == P
    assert np.asarray(collected.rewards.total_B).tolist() == [0, 1] * P
    ((responses, rewards),) = credited
    assert rewards == [0] * P * G
    assert responses[::G] == [episode.response for episode in collected.episodes[::G]]
    for ours, trained in zip(responses[1::G], collected.episodes[1::G], strict=True):
        assert ours != trained.response  # the solution of the cache, sampled as sample 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ahead": 2, "max_staleness": 1}, "ahead=2 makes tokens 2 steps old, but max_staleness=1"),
        ({"ahead": 0, "on_new_weights": "abort"}, "on_new_weights=abort would have no effect"),
        ({"late": "restart"}, "late=restart would have no effect"),
        ({"only_new_tokens": True}, "only_new_tokens=true would have no effect"),
    ],
)
def test_options_that_cannot_act_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Asynchronous(**options)
    Asynchronous(ahead=0, over_sampling=1.5, on_new_weights="abort", late="restart")
    Asynchronous(on_new_weights="continue", only_new_tokens=True)


def test_responses_are_interrupted_only_by_an_engine_that_can_be_stopped(
    policy, make_phases, prompts
):
    phases = make_phases(
        rollout=NaiveSampler(max_response_tokens=R), reward=Weighted(terms={"v": Vowels()})
    )
    with pytest.raises(InputError, match="needs an engine that can be stopped"):
        Asynchronous(on_new_weights="abort").open(
            phases, policy, PromptStream(prompts, 0), prompts_per_step=P, group_size=G
        )


DEVICES = """
import sys

import jax

from rl4p.configuration import compose
from rl4p.runs.build import build
from rl4p.loop.loop import train

experiment = build(compose(sys.argv[1:]))
engine = experiment.loop.collector.engine
for info in train(experiment.loop, experiment.state):
    assert info.metrics["update/grad_norm"] > 0
    found = {device.id for x in jax.tree.leaves(engine.weights[0]) for device in x.devices()}
    print(sorted(found), [episode.prompt.id for episode in info.episodes])
experiment.loop.collector.close()
"""
SMALL = (
    "model=scratch",
    "model.width=16",
    "model.heads=2",
    "model.layers=1",
    "model.feed_forward_width=16",
    "data.train_size=60",
    "data.held_out_size=4",
    "steps=3",
    "prompts_per_step=6",
    "group_size=3",
    "max_response_tokens=6",
    "+reward.terms.capital._target_=rl4p.reward.form.Format",
    "+reward.terms.capital.weight=1.0",
    "+reward.terms.capital.pattern='.*[A-Z].*'",
    "evaluation.term=capital",
    "collector=asynchronous",
    "collector.over_sampling=1.1",
)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["naive_sampler", "continuous"])
def test_devices_that_only_sample_take_any_number_of_rows(on_devices, sampler):
    """Two devices train, and two sample first the 21 rows of seven groups."""
    apart = f"rollout={sampler}", "mesh.rollout_devices=2"
    assert sampling_devices(on_devices(4), *apart) == ["[2, 3"] * 3


@pytest.mark.slow
def test_devices_that_train_too_sample_in_another_layout_during_updates(on_devices):
    layout = "mesh.fsdp=4", "mesh.dp=1", "mesh.sampling_tp=2", "group_size=2"
    assert sampling_devices(on_devices(4), *layout) == ["[0, 1, 2, 3"] * 3


def sampling_devices(environment, *words):
    """Returns the devices that have the weights of the sampler in each of three steps."""
    command = [sys.executable, "-c", DEVICES, *SMALL, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    steps = [line.split("]", 1) for line in done.stdout.splitlines()]
    episodes = [id for _, ids in steps for id in ast.literal_eval(ids.strip())]
    assert len({*episodes}) == 18  # six prompts a step
    return [devices for devices, _ in steps]


TERMS = {"correct": Correct()}
USUAL = {"rollout": Continuous(max_response_tokens=4), "reward": Weighted(terms=TERMS)}


@dataclass(frozen=True, kw_only=True)
class Remembering(Weighted):
    def initial_state(self):
        return {}


def test_an_engine_and_a_reward_without_memory_can(make_phases, policy):
    open_engine("finish", make_phases(**USUAL), policy)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (
            {"rollout": Demonstrations(max_response_tokens=4)},
            "needs a rollout with an engine: choose rollout=continuous, or collector=synchronous.",
        ),
        (
            {"reward": Remembering(terms=TERMS)},
            "cannot keep the memory of the reward: choose collector=synchronous.",
        ),
    ],
)
def test_other_phases_are_refused(make_phases, policy, changed, sentence):
    with pytest.raises(InputError, match=sentence):
        open_engine("finish", make_phases(**USUAL | changed), policy)


def test_several_processes_are_refused(make_phases, policy, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(InputError, match="one process, but there are 2: choose collector=synch"):
        open_engine("finish", make_phases(**USUAL), policy)
