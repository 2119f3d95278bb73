"""Tests that a part without a member of its protocol is refused in one sentence."""

import pytest

from rl4p.base.errors import InputError
from rl4p.loop.source.stream import PromptStream
from rl4p.protocols.collection import OpenSource
from rl4p.protocols.hook import Hook
from rl4p.protocols.members import require, required_members
from rl4p.protocols.phases import Rollout


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
