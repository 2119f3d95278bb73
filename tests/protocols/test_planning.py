"""Tests that rollouts which sample on the devices of a run can be planned and estimated."""

from types import SimpleNamespace

import pytest

from rl4p.protocols.planning import CacheSize, KeepsCaches, Planned
from rl4p.rollout.continuous import Continuous
from rl4p.rollout.demonstrations import Demonstrations
from rl4p.rollout.naive_sampler import NaiveSampler

RUN = SimpleNamespace(
    prompts=2,
    sequences=8,
    prompt_columns=16,
    response_tokens=32,
    policy=SimpleNamespace(sampling_mesh=SimpleNamespace(row_shards=1)),
)


@pytest.mark.parametrize("rollout", [Continuous, NaiveSampler])
def test_the_samplers_of_this_process_have_programs_and_caches(rollout):
    sampler = rollout(max_response_tokens=32)
    assert isinstance(sampler, Planned)
    assert isinstance(sampler, KeepsCaches)
    assert CacheSize(rows=8, columns=48) in sampler.caches(RUN)


def test_demonstrations_have_none():
    assert not isinstance(Demonstrations(max_response_tokens=32), (Planned, KeepsCaches))
