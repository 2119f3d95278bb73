import jax
import numpy as np
import pytest

from rl4p.base.types import Finish
from rl4p.loop.group_requests import finished_groups, keys_of, requests_for
from rl4p.loop.pending_groups import PendingGroup
from rl4p.protocols.engine import Completion
from rl4p.rollout.sampler import sequence_keys

KEY = jax.random.key(7)


@pytest.fixture
def make_group(make_prompt):
    def make(number=0, completions=(None, None), **fields):
        prompt = make_prompt(tokens=(5, 6, 7))
        return PendingGroup(number=number, prompt=prompt, completions=list(completions), **fields)

    return make


def part(*tokens, finish=Finish.ABORT):
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
    groups = [make_group(number=4), make_group(number=5, completions=(part(), None))]
    requests, places = requests_for(groups, KEY, 2, 10)
    assert places == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for request, pending in zip(requests, groups, strict=True):
        assert (request.tokens, request.max_tokens, request.drawn) == ((5, 6, 7), 10, 0)
        np.testing.assert_array_equal(request.keys_N, keys_of(pending, KEY, 2))


def test_unfinished_samples_go_on_where_they_stopped(make_group):
    completions = (part(1, 2), part(3, finish=Finish.STOP), None)
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
