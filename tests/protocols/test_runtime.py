"""Tests that the runtimes of the package keep their contract, and what an image has by default."""

from inspect import signature
from pathlib import Path

import pytest

from rl4p.protocols.runtime import Image, OpenRuntime, Runtime
from rl4p.rollout.runtimes.bubblewrap import Bubblewrap, OpenBubblewrap
from rl4p.rollout.runtimes.container import Container, OpenContainer


@pytest.mark.parametrize("options", [Bubblewrap(), Container()])
def test_the_options_are_runtimes(options):
    assert isinstance(options, Runtime)
    assert not isinstance(Image(name="t", context=Path()), Runtime)


@pytest.mark.parametrize("machine", [OpenBubblewrap, OpenContainer])
def test_machines_take_the_same_arguments(machine):
    def kinds(function):
        return {x.name: (x.kind, x.default) for x in signature(function).parameters.values()}

    assert kinds(machine.run) == kinds(OpenRuntime.run)


def test_an_image_asks_for_nothing_by_itself():
    image = Image(name="t", context=Path())
    assert {image.memory_mib, image.disk_mib, image.cpus, image.reference} == {None}
