"""Submissions of a driver, and the device calls in which it places them."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from rl4p.base.errors import RunError
from rl4p.base.types import Finish
from rl4p.engine.decode import MOST_STEPS
from rl4p.engine.driver import FIRST_STEPS, SECONDS_PER_CALL, CallSteps, Driver
from rl4p.engine.layout import Layout
from rl4p.engine.sequence import TokenSequence


def sequence(tokens=(5, 6), index=0, max_tokens=4):
    key = np.zeros(2, np.uint32)
    return TokenSequence(context=tokens, key=key, max_tokens=max_tokens, end_ids=(), index=index)


@pytest.fixture
def driver(policy, params):
    layout = Layout(sizes=[8], most=128, prefill_rows=8, tokens_per_call=32)
    sampled = policy.for_sampling(params)
    return Driver(policy, sampled, "1", layout, call_steps=CallSteps(4), checks=True)


def call(seconds, steps, size=4):
    return SimpleNamespace(seconds=seconds, outcome=SimpleNamespace(steps=steps), size=size)


def test_a_call_lasts_about_as_long_as_it_should():
    length = CallSteps()
    assert length.steps(4) == FIRST_STEPS
    length.learn(call(math.nan, 8))  # it also placed sequences
    assert length.steps(4) == FIRST_STEPS
    length.learn(call(8 * 0.002, 8))
    assert length.steps(4) == math.ceil(SECONDS_PER_CALL / 0.002)
    length.learn(call(1.0, 1))  # clients had the processor
    assert length.steps(4) == math.ceil(SECONDS_PER_CALL / 0.00204)
    length.learn(call(1e-5, 1))
    assert length.steps(4) == MOST_STEPS
    assert length.steps(16) == FIRST_STEPS


def test_an_aborted_submission_ends_each_unfinished_sequence(driver):
    received = []
    submission = driver.submit([sequence() for _ in range(3)], received.append)
    del submission.left[1]
    assert submission.count == 2
    driver.abort_now()
    (chunks,) = received
    ends = [(chunk.sequence.index, chunk.finish) for chunk in chunks]
    assert ends == [(0, Finish.ABORT), (2, Finish.ABORT)]


def test_an_error_goes_to_who_asked_for_errors(driver):
    received, failed = [], []
    submission = driver.submit([sequence()], received.append, failed.append)
    error = RunError("broken")
    driver.send(driver.end_all([submission], error))
    assert (received, failed) == ([], [error])


def test_few_tokens_are_prefilled_between_two_calls(driver):
    same, other = (7,) * 16, (8,) * 16
    driver.waiting.extend(map(sequence, (same, same, other, (9,), same)))
    assert [x.tokens[0] for x in driver.take()[1]] == [7, 7, 8]
    driver.slots = 1
    assert [x.tokens[0] for x in driver.take()[1]] == [9]
    driver.waiting.clear()
    driver.waiting.extend([sequence((3,) * 100), sequence()])
    driver.slots = 8
    assert len(driver.take()[1]) == 1  # a long context waits for nobody


def test_a_receiver_may_end_a_sequence_early_and_sees_each_call(driver):
    chunks = []

    def receive(new):
        chunks.extend(new)
        for chunk in new:
            if chunk.sequence.index == 0:
                driver.stop(chunk.sequence)

    first, second = sequence(max_tokens=40), sequence(max_tokens=6)
    submission = driver.submit([first, second], receive)
    while submission.open:
        driver.step()
    counts = [(len(x.tokens), x.finish) for x in chunks if x.sequence is second]
    assert counts == [(4, None), (2, Finish.LENGTH)]
    assert [len(x.tokens) for x in chunks if x.sequence is first] == [4]
    assert not driver.batch.slots.running()


def test_an_error_of_a_receiver_reaches_who_makes_the_step(driver):
    def receive(_):
        raise ValueError("stop here")

    driver.submit([sequence()], receive)
    with pytest.raises(ValueError, match="stop here"):
        driver.step()


def test_a_cancelled_submission_gets_nothing_and_loses_its_slots(driver):
    chunks = []
    submission = driver.submit([sequence(max_tokens=40)], chunks.extend)
    driver.step()
    driver.cancel(submission)
    driver.step()
    assert len(chunks) == 1
    assert not driver.batch.slots.running()
