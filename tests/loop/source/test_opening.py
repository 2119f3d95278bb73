"""Tests that a source without a method of its protocol is refused when it is opened."""

from types import SimpleNamespace

import pytest

from rl4p.base.errors import InputError
from rl4p.loop.source.opening import open_source
from rl4p.loop.source.replay import Replay
from rl4p.loop.source.stream import PromptStream, Stream


class Forgetful:
    """Options of a source that cannot find a prompt again."""

    def open(self, prompts, *, seed):
        methods = ("take", "credit", "state", "restore")
        return SimpleNamespace(**dict.fromkeys(methods, lambda *arguments: None))


def test_a_complete_source_is_opened(prompts):
    live = open_source(Stream(), prompts, seed=3)
    assert isinstance(live, PromptStream)
    assert live.seed == 3


def test_a_source_without_find_is_refused(prompts):
    with pytest.raises(InputError, match=r"source: .*SimpleNamespace has no method find, but"):
        open_source(Forgetful(), prompts, seed=0)
    with pytest.raises(InputError, match="has no method open"):
        open_source(PromptStream(prompts, 0), prompts, seed=0)


def test_a_source_within_a_source_is_refused_by_its_own_key(prompts):
    with pytest.raises(InputError, match=r"source\.source: .* has no method find"):
        Replay(source=Forgetful(), least=1).open(prompts, seed=0)
