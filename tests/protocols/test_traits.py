"""Tests the optional members of the parts of a run."""

from types import SimpleNamespace

from rl4p.learner.update_options import UpdateOptions
from rl4p.protocols.traits import PhaseTraits, RolloutTraits, UpdateTraits
from rl4p.rollout.demonstrations import Demonstrations


def test_a_part_has_the_default_of_what_it_lacks():
    assert RolloutTraits.read(object()) == RolloutTraits()
    assert not RolloutTraits.read(Demonstrations(max_response_tokens=4)).samples
    limited = SimpleNamespace(max_logprob_gap=0.5)
    assert RolloutTraits.read(limited) == RolloutTraits(max_logprob_gap=0.5)


def test_a_member_may_be_a_property_or_a_field():
    assert PhaseTraits.read(UpdateOptions()).needs == frozenset()
    assert PhaseTraits.read(UpdateOptions(epochs=2)).needs == {"proximal_logprobs"}
    assert UpdateTraits.read(SimpleNamespace(pack=True)).pack
