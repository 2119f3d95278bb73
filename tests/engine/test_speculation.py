"""The choice of when to speculate."""

import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.engine import speculation
from rl4p.engine.decode import MOST_STEPS
from rl4p.engine.drafts import LONGEST_MATCH, NO_TOKEN
from rl4p.engine.sequence import TokenSequence
from rl4p.engine.speculate import FEW_STEPS
from rl4p.engine.speculation import Counts, Speculation, parameter_tokens


def sequence(context, new=()):
    made = TokenSequence(context=context, key=np.uint32([0, 0]), max_tokens=90, end_ids=())
    made.tokens += new
    return made


def make(most=3, length=100, shards=1, parameters=100, slots=1):
    options = {"length": length, "slots": slots, "shards": shards, "counts": Counts()}
    return Speculation(most, parameter_tokens=parameters, **options)


PERIODIC, COUNTING = [1, 2, 3, 4] * 8, list(range(5, 37))


def test_the_cost_of_a_step_by_hand():
    assert make(parameters=20).cost(10, 3) == (20 + 40) / (20 + 10)
    assert make(parameters=20, shards=2).cost(20, 3) == (20 + 40) / (20 + 10)


@pytest.mark.parametrize(
    ("slots", "shards", "largest", "lengths"),
    [
        (16, 1, 16, [3, 7]),  # 128 positions
        (17, 1, 17, [3]),
        (33, 1, 33, []),
        (34, 2, 34, [3]),
        (33, 1, 132, [3]),  # as many as without drafts in the largest number of slots
    ],
)
def test_a_step_has_no_more_positions_than_there_is_memory_for(slots, shards, largest, lengths):
    assert make(most=7, shards=shards, parameters=10**6, slots=largest).likely(slots) == lengths


def test_drafts_must_be_right_and_cost_little():
    right, wrong = [sequence([9, 8], PERIODIC)] * 4, [sequence([9, 8], COUNTING)] * 4
    assert make().choose(right, allowed=True)[::2] == (3, FEW_STEPS)
    assert make().choose(wrong, allowed=True)[::2] == (0, FEW_STEPS)
    # The parameters are read as fast as two tokens: a step of 4 tokens costs 3 steps.
    assert make(parameters=2).choose(right, allowed=True)[::2] == (0, MOST_STEPS)
    # A step of 4 tokens costs 1.75 steps, and of 2 tokens 1.25: if half of the drafts are right,
    # the shorter is better.
    several = make(parameters=12)
    several.learn(np.array([50, 0, 0, 50]))
    assert several.choose(wrong, allowed=True).k == 3
    several.forget()
    several.learn(np.array([48, 50, 1, 1]))
    assert several.choose(wrong, allowed=True).k == 1


def test_sequences_without_new_tokens_show_nothing():
    """A context may repeat itself, and the response not. The next call looks again."""
    chosen = make()
    for _ in range(3):
        assert chosen.choose([sequence(PERIODIC), None], allowed=True) == (0, None, FEW_STEPS)
        chosen.add(FEW_STEPS, None, [])


def test_expected_tokens_by_hand():
    chosen = make(most=4)
    assert chosen.expected(4) == 1
    chosen.learn(np.array([4, 2, 2]))  # of 8 first tokens 4 were right, and of 4 second ones 2
    assert chosen.expected(1) == 1.5
    assert chosen.expected(2) == 1.75
    assert chosen.expected(4) == 1 + 1 / 2 + 1 / 4 + 1 / 8 + 1 / 16
    chosen.learn(np.array([0, 0, 0, 0, 8]))  # earlier ones count half as much
    assert chosen.expected(1) == 1 + 10 / 12


def test_drafts_that_were_wrong_are_tried_again_after_more_and_more_steps():
    chosen = make()
    right, wrong = [sequence([9, 8], PERIODIC)] * 4, [sequence([9, 8], COUNTING)] * 4
    assert chosen.choose(right, allowed=True).k == 3
    chosen.add(16, jnp.int32([[90, 0, 0, 0]] * 4), [(each, 90, True) for each in right])
    for steps in (16, 32, 64, 64):
        assert chosen.choose(wrong, allowed=True) == (0, None, steps)
        chosen.add(steps - 5, None, [])
        assert chosen.choose(right, allowed=True) == (0, None, 5)
        chosen.add(5, None, [])
    assert chosen.choose(right, allowed=True).k == 3
    chosen.forget()
    assert chosen.choose(wrong, allowed=True) == (0, None, 16)
    assert chosen.choose(right[:2], allowed=True).k == 3  # other sizes have other costs
    chosen.forget()
    assert chosen.choose(wrong[:2], allowed=True) == (0, None, 16)
    chosen.add(1, None, [(wrong[3], 1, False)])  # a response has ended
    assert chosen.choose(right[:2], allowed=True).k == 3


def test_drafts_that_are_not_allowed_are_not_looked_up():
    chosen, right = make(), [sequence([9, 8], PERIODIC)] * 4
    chosen.add(1, None, [(right[0], 1, False)])
    assert chosen.choose(right, allowed=False) == (0, None, MOST_STEPS)
    assert not chosen.ended  # they would keep their caches
    assert chosen.choose(right, allowed=True).k == 3


def test_a_text_begins_with_the_newest_responses_to_the_same_context():
    chosen, context = make(most=1, length=30), list(range(50, 62))
    others = [sequence(context, [1, 2]), sequence([9], [7, 7]), sequence(context, [3])]
    chosen.add(1, None, [(each, len(each.tokens), False) for each in others])
    running = sequence(context, [1])
    chosen.keep_responses()
    tokens_nC, begin_n = chosen.texts([running, None])
    tail = context[-LONGEST_MATCH:]
    text = [*tail, 3, NO_TOKEN, *tail, 1, 2, NO_TOKEN, *context, 1]
    assert tokens_nC[0, : len(text)].tolist() == text
    assert (tokens_nC[0, len(text) :] == NO_TOKEN).all()
    assert begin_n.tolist() == [len(text) - 13, 0]
    assert tokens_nC.shape == (2, 4 * 32)


def test_a_text_leaves_room_for_its_sequence():
    chosen = make(most=1, length=30)
    chosen.add(1, None, [(sequence([5], range(i, i + 29)), 29, False) for i in range(9)])
    chosen.keep_responses()
    tokens_nC, begin_n = chosen.texts([sequence([5])])
    assert begin_n[0] + chosen.own <= tokens_nC.shape[1]
    assert tokens_nC[0, begin_n[0]] == 5
    assert begin_n[0] == 3 * 31


def test_responses_of_many_contexts_are_forgotten(monkeypatch):
    monkeypatch.setattr(speculation, "CONTEXTS", 3)
    chosen = make()
    chosen.add(1, None, [(sequence([i], [i]), 1, False) for i in range(5)])
    chosen.keep_responses()
    assert list(chosen.responses) == [(2,), (3,), (4,)]


def test_counts_by_hand():
    chosen = make()
    chosen.add(1, None, [(sequence([1]), 6, True)])
    assert chosen.counts.metrics() == {
        "rollout/tokens_per_decode_step": 1.0,
        "rollout/drafted": 0.0,
    }
    chosen.add(1, jnp.int32([[1, 0, 0, 1], [0, 2, 0, 0]]), [(sequence([1]), 5, True)] * 2)
    assert chosen.counts.metrics() == {
        "rollout/tokens_per_decode_step": 1.6,
        "rollout/drafted": 10 / 16,
        "rollout/tokens_per_drafted_step": 2.5,
    }


@pytest.mark.parametrize(
    ("platform", "count", "tokens"),
    [("cpu", 10, 3), ("cpu", 2**25, 8), ("gpu", 10, 256), ("tpu", 10, 256), ("other", 10, 256)],
)
def test_large_parameters_are_read_from_memory(platform, count, tokens):
    assert parameter_tokens(platform, {"x": np.broadcast_to(np.float32(0), (count,))}) == tokens
