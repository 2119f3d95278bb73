"""Tests that each data set of this package has the members of the protocol."""

from rl4p.data.huggingface import GSM8K
from rl4p.data.mixture import Mixture
from rl4p.data.synthetic import Arithmetic
from rl4p.protocols.data import DataSet
from rl4p.protocols.members import require, required_members


def test_a_data_set_has_two_sets_of_questions_and_a_system_prompt():
    assert required_members(DataSet) == {"system_prompt": False, "train": True, "held_out": True}
    require(Arithmetic(digits=2, train_size=4, held_out_size=2), DataSet, "data")
    for each in (GSM8K, Mixture):
        assert all(hasattr(each, name) for name in ("train", "held_out"))
