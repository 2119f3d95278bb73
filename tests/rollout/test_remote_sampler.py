"""Tests the options of rollouts whose tokens are drawn by servers."""

from types import SimpleNamespace

import jax
import pytest

from rl4p.base.errors import InputError
from rl4p.rollout.sglang import SGLang
from rl4p.rollout.vllm import VLLM
from tests.support.remote_engines import IN_ORDER, PROTOCOLS


@pytest.mark.parametrize("protocol", IN_ORDER)
def test_several_processes_are_refused(protocol, policy, monkeypatch):
    sampler = PROTOCOLS[protocol][0](servers=("http://127.0.0.1:1",), max_response_tokens=8)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(InputError, match=f"rollout={protocol} needs a run of one process"):
        sampler.open(policy)


@pytest.mark.parametrize(("apart", "key"), [(True, "rollout_devices"), (False, "sampling_tp")])
@pytest.mark.parametrize("protocol", IN_ORDER)
def test_a_mesh_for_sampling_is_refused(protocol, apart, key):
    sampler = PROTOCOLS[protocol][0](servers=("http://127.0.0.1:1",), max_response_tokens=8)
    one = SimpleNamespace(shape={"tp": 1})
    mesh = SimpleNamespace(
        rollout_devices=int(apart), sampling_tp=None if apart else 2, devices=one
    )
    policy = SimpleNamespace(mesh=mesh)
    with pytest.raises(InputError, match=rf"mesh\.{key} would have no effect"):
        sampler.open(policy)


@pytest.mark.parametrize("sampler", [VLLM, SGLang])
def test_options_of_the_pool_are_checked(sampler):
    with pytest.raises(ValueError, match="servers is empty"):
        sampler(servers=(), max_response_tokens=3)


def test_a_key_that_is_not_set_is_an_error(policy, monkeypatch):
    monkeypatch.delenv("RL4P_NO_KEY", raising=False)
    sampler = VLLM(servers=("http://a:1",), max_response_tokens=3, key_variable="RL4P_NO_KEY")
    with pytest.raises(InputError, match="is not set"):
        sampler.open(policy)
