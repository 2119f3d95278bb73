"""Tests that the live source and collector of this package have the methods of their contracts."""

import inspect

import pytest

from rl4p.loop import protocols
from rl4p.loop.collector.synchronous import OpenSynchronous
from rl4p.loop.source.stream import PromptStream

LIVE = {protocols.OpenSource: PromptStream, protocols.OpenCollector: OpenSynchronous}


@pytest.mark.parametrize("contract", LIVE, ids=lambda contract: contract.__name__)
def test_a_live_object_has_the_methods_of_its_contract(contract):
    methods = inspect.getmembers(contract, inspect.isfunction)
    public = {name: function for name, function in methods if name[0] != "_"}
    assert {"state", "restore"} < public.keys()
    for name, function in public.items():
        wanted = list(inspect.signature(function).parameters)
        assert list(inspect.signature(getattr(LIVE[contract], name)).parameters) == wanted, name
