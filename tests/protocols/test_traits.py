"""Tests the optional members of the parts of a run, and the refusal of a part that lacks one."""

from types import SimpleNamespace

import pytest

from rl4p.base.errors import InputError
from rl4p.learner.update_options import UpdateOptions
from rl4p.loop.source import PromptStream
from rl4p.protocols.collection import OpenSource
from rl4p.protocols.hook import Hook
from rl4p.protocols.phases import Rollout
from rl4p.protocols.traits import (
    CacheSize,
    KeepsCaches,
    PhaseTraits,
    Planned,
    RolloutTraits,
    UpdateTraits,
    require,
    required_members,
)
from rl4p.rollout.continuous import Continuous
from rl4p.rollout.demonstrations import Demonstrations
from rl4p.rollout.naive_sampler import NaiveSampler


def test_a_part_has_the_default_of_what_it_lacks():
    assert RolloutTraits.read(object()) == RolloutTraits()
    assert not RolloutTraits.read(Demonstrations(max_response_tokens=4)).samples
    limited = SimpleNamespace(max_logprob_gap=0.5)
    assert RolloutTraits.read(limited) == RolloutTraits(max_logprob_gap=0.5)


def test_a_member_may_be_a_property_or_a_field():
    assert PhaseTraits.read(UpdateOptions()).needs == frozenset()
    assert PhaseTraits.read(UpdateOptions(epochs=2)).needs == {"proximal_logprobs"}
    assert UpdateTraits.read(SimpleNamespace(pack=True)).pack


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


class WithoutFind:
    """A live source that cannot find a prompt again."""

    take = credit = state = restore = lambda self, *arguments: None


class Silent:
    """A hook that cannot be called."""

    every = 1


class Named:
    """A hook whose interval is missing and whose call is not a method of the class."""

    def __call__(self, info):
        return {}


def test_a_part_with_every_member_is_accepted():
    require(PromptStream([], 0), OpenSource, "source")


def test_a_missing_method_is_named_with_its_class_and_its_protocol():
    with pytest.raises(InputError) as error:
        require(WithoutFind(), OpenSource, "source")
    assert str(error.value) == (
        f"source: the class {__name__}.WithoutFind has no method find, but "
        "rl4p.protocols.collection.OpenSource requires it: add it to the class."
    )
    with pytest.raises(InputError, match=r"hooks\.mine: .*Silent has no method __call__, but"):
        require(Silent(), Hook, "hooks.mine")


def test_a_method_must_be_callable():
    source = PromptStream([], 0)
    source.find = None
    with pytest.raises(InputError, match="has no method find"):
        require(source, OpenSource, "source")


def test_a_missing_attribute_is_named():
    with pytest.raises(InputError, match=r"hooks\.mine: .*Named has no attribute every, but"):
        require(Named(), Hook, "hooks.mine")


def test_the_members_of_a_protocol_include_those_of_its_parents():
    assert required_members(OpenSource) == dict.fromkeys(
        ("take", "credit", "find", "state", "restore"), True
    )
    assert required_members(Rollout) == {
        "sampling": False,
        "max_response_tokens": False,
        "__call__": True,
    }
