"""Tests which models can be planned."""

from rl4p.model.pretrained import Pretrained
from rl4p.model.scratch import Scratch
from rl4p.protocols.members import required_members
from rl4p.protocols.model import Model, PlannedModel


class Built:
    """A model that has arrays only."""

    def build(self, mesh, key):
        return None, {}


def test_a_model_with_shapes_can_be_planned():
    assert required_members(PlannedModel).keys() == required_members(Model).keys() | {"abstract"}
    assert isinstance(Scratch(), PlannedModel)
    assert isinstance(Pretrained(path="folder"), PlannedModel)
    assert not isinstance(Built(), PlannedModel)
