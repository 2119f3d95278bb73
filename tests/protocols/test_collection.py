"""Tests that the parts of a collection have the methods of their protocols."""

import inspect

import pytest

from rl4p.loop.collector.synchronous import OpenSynchronous
from rl4p.loop.phases import Phases
from rl4p.loop.source import PromptStream
from rl4p.protocols.collection import CollectorPhases, OpenCollector, OpenSource

PARTS = {OpenSource: PromptStream, OpenCollector: OpenSynchronous, CollectorPhases: Phases}


@pytest.mark.parametrize("protocol", PARTS, ids=lambda protocol: protocol.__name__)
def test_a_part_has_the_methods_of_its_protocol_with_their_arguments(protocol):
    methods = inspect.getmembers(protocol, inspect.isfunction)
    public = {name: function for name, function in methods if name[0] != "_"}
    assert public
    for name, function in public.items():
        wanted = list(inspect.signature(function).parameters)
        assert list(inspect.signature(getattr(PARTS[protocol], name)).parameters) == wanted, name
