import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Episode
from rl4p.configuration import compose
from rl4p.reward.labels import Labels
from rl4p.runs.build import build_phases


def episodes(make_prompt, *labels, key="label"):
    return [Episode(prompt=make_prompt(metadata={key: x}), response="r") for x in labels]


def test_a_good_response_has_1_and_a_bad_one_minus_1(make_prompt):
    rewards = Labels(key="good")(None, episodes(make_prompt, True, False, 1, 0, key="good"))
    assert rewards.total_B.tolist() == [1, -1, 1, -1]
    assert rewards.total_B.dtype == np.float32
    assert rewards.valid_B.all()


@pytest.mark.parametrize("label", [None, "true", 0.5])
def test_a_row_without_a_label_is_refused(make_prompt, label):
    with pytest.raises(InputError, match=r"of a is .*: set data\.metadata_keys=\[label\]"):
        Labels()(None, episodes(make_prompt, True, label))


def test_samples_have_no_labels():
    with pytest.raises(InputError, match="samples others: choose rollout=demonstrations"):
        build_phases(compose(["reward=labels", "advantage=reinforce", "update=kto"]))
