"""Tests that data sets have the members of their protocol, and which models can be planned."""

from rl4p.data.huggingface import GSM8K
from rl4p.data.mixture import Mixture
from rl4p.data.synthetic import Arithmetic
from rl4p.model.pretrained import Pretrained
from rl4p.model.scratch import Scratch
from rl4p.protocols.data_and_model import DataSet, Model, PlannedModel
from rl4p.protocols.traits import require, required_members


def test_a_data_set_has_two_sets_of_questions_and_a_system_prompt():
    assert required_members(DataSet) == {"system_prompt": False, "train": True, "held_out": True}
    require(Arithmetic(digits=2, train_size=4, held_out_size=2), DataSet, "data")
    for each in (GSM8K, Mixture):
        assert all(hasattr(each, name) for name in ("train", "held_out"))


class Built:
    """A model that has arrays only."""

    def build(self, mesh, key):
        return None, {}


def test_a_model_with_shapes_can_be_planned():
    assert required_members(PlannedModel).keys() == required_members(Model).keys() | {"abstract"}
    assert isinstance(Scratch(), PlannedModel)
    assert isinstance(Pretrained(path="folder"), PlannedModel)
    assert not isinstance(Built(), PlannedModel)
