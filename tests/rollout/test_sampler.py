"""What every sampler shares: the limit of a response, and the distribution of its tokens."""

import dataclasses

import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Sampling
from rl4p.configuration import compose, instantiate
from rl4p.rollout.annealing import Linear
from rl4p.rollout.continuous import Continuous
from rl4p.rollout.naive_sampler import NaiveSampler
from rl4p.rollout.sampler import Sampler, response_keys, without_annealing, words

KINDS = (NaiveSampler, Continuous)


@pytest.mark.parametrize("kind", KINDS)
def test_the_distribution_is_that_of_the_options(kind):
    plain = kind(max_response_tokens=4)
    assert plain.sampling == Sampling(temperature=1.0, top_k=0, top_p=1.0)
    changed = kind(max_response_tokens=4, temperature=0.5, top_k=3, top_p=0.9)
    assert changed.sampling == Sampling(temperature=0.5, top_k=3, top_p=0.9)


@pytest.mark.parametrize("kind", KINDS)
def test_samplers_have_the_same_options(kind):
    shared = {field.name for field in dataclasses.fields(Sampler)}
    distribution = {"temperature", "annealing", "top_k", "top_p", "min_p", "tasks"}
    distribution |= {"least_tokens", "repetition_penalty", "presence_penalty"}
    others = {"max_response_tokens", "stop", "sync_every", "max_logprob_gap"}
    assert shared == distribution | others
    assert shared <= {field.name for field in dataclasses.fields(kind)}
    assert issubclass(kind, Sampler)


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("option", "kept"),
    [
        ("temperature=0", True),
        ("temperature=-0.1", False),
        ("temperature=inf", False),
        ("temperature=nan", False),
        ("top_k=0", True),
        ("top_k=-1", False),
        ("top_p=1.0", True),
        ("top_p=0.0", False),
        ("top_p=1.1", False),
        ("max_response_tokens=1", True),
        ("max_response_tokens=0", False),
    ],
)
def test_options_have_a_range(option, kept):
    key, _, value = option.partition("=")
    overrides = ["rollout=continuous", f"rollout.{option}"]
    if kept:
        assert getattr(instantiate(compose(overrides).rollout), key) == float(value)
    else:
        with pytest.raises(InputError, match=rf"^rollout\.{key} must be "):
            compose(overrides)


@pytest.mark.parametrize("kind", KINDS)
def test_annealing_begins_with_the_temperature(kind):
    annealing = Linear(end=0.5, steps=2)
    sampler = kind(max_response_tokens=4, temperature=1.5, annealing=annealing)
    assert [sampler.temperature_at(step) for step in range(3)] == [1.5, 1.0, 0.5]
    assert kind(max_response_tokens=4).temperature_at(1) is None
    fixed = without_annealing(sampler)
    assert fixed == kind(max_response_tokens=4, temperature=1.5)
    assert without_annealing(fixed) is fixed
    with pytest.raises(ValueError, match="annealing needs a temperature above 0"):
        kind(max_response_tokens=4, temperature=0.0, annealing=annealing)


def test_annealing_is_an_option_of_the_command_line():
    overrides = ["+annealing@rollout.annealing=linear", "rollout.annealing.end=0.6", "steps=30"]
    assert instantiate(compose(overrides).rollout).annealing == Linear(end=0.6, steps=30)


def test_a_key_depends_on_seed_prompt_and_sample_only():
    keys = response_keys(0, ["a", "b", "c"], 4)
    assert keys.shape[:2] == (3, 4)
    assert keys.dtype == np.uint32
    np.testing.assert_array_equal(response_keys(0, ["c", "a"], 2), keys[[2, 0], :2])
    later = response_keys(0, ["a", "b"], 2, first=[2, 1])
    np.testing.assert_array_equal(later, [keys[0, 2:4], keys[1, 1:3]])


def test_all_keys_differ():
    keys = [response_keys(seed, [str(n) for n in range(50)], 4) for seed in (0, 1)]
    keys = np.concatenate(keys).reshape(400, -1)
    assert len(np.unique(keys, axis=0)) == 400


def test_words_are_of_32_bits_and_stable():
    """They are part of saved results, so they may never change."""
    assert words("arithmetic/347+585") == (1733422823, 1694684471)
