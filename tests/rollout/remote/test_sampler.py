"""Tests the options of rollouts whose tokens are drawn by servers."""

from types import SimpleNamespace

import jax
import pytest

from rl4p.errors import InputError
from rl4p.rollout.remote.sampler import check_address
from rl4p.rollout.sglang import SGLang
from rl4p.rollout.vllm import VLLM
from tests.rollout.remote.cases import PROTOCOLS


def test_several_processes_are_refused(protocol, policy, monkeypatch):
    sampler = PROTOCOLS[protocol][0](servers=("http://127.0.0.1:1",), max_response_tokens=8)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(InputError, match=f"rollout={protocol} needs a run of one process"):
        sampler.open(policy)


def test_devices_for_sampling_are_refused(protocol, policy):
    sampler = PROTOCOLS[protocol][0](servers=("http://127.0.0.1:1",), max_response_tokens=8)
    mesh = SimpleNamespace(sampling=None)
    with pytest.raises(InputError, match=r"mesh\.rollout_devices would have no effect"):
        sampler.open(SimpleNamespace(mesh=mesh))


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("127.0.0.1:8000", "no address"),
        ("ftp://a", "no address"),
        ("http://me:secret@a", "password"),
        ("http://a:1/v1", "leave out /v1"),
        ("http://a:1/?q=1", "leave out /v1"),
    ],
)
def test_an_address_is_checked(url, why):
    with pytest.raises(ValueError, match=why) as error:
        check_address(url)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"servers": ()}, "servers is empty"),
        ({"servers": ("http://a:1", "http://a:1/")}, "twice"),
        ({"key_variable": "sk-123"}, "not the name of an environment variable"),
    ],
)
@pytest.mark.parametrize("sampler", [VLLM, SGLang])
def test_options_are_checked(sampler, options, why):
    with pytest.raises(ValueError, match=why):
        sampler(**{"servers": ("http://a:1",), "max_response_tokens": 3} | options)


def test_a_key_that_is_not_set_is_an_error(policy, monkeypatch):
    monkeypatch.delenv("RL4P_NO_KEY", raising=False)
    sampler = VLLM(servers=("http://a:1",), max_response_tokens=3, key_variable="RL4P_NO_KEY")
    with pytest.raises(InputError, match="is not set"):
        sampler.open(policy)
