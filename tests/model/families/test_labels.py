"""Tests how the number of a classifier's labels is read from its config.json."""

import pytest

from rl4p.base.errors import InputError
from rl4p.model.families.labels import read_labels, write_labels

CLASSIFIER = {"architectures": ["LlamaForSequenceClassification"]}


@pytest.mark.parametrize(
    ("config", "labels"),
    [
        ({}, 0),
        ({"architectures": None, "num_labels": 3}, 0),
        ({"architectures": ["LlamaForCausalLM"], "id2label": {"0": "a"}}, 0),
        ({"architectures": ["ForSequenceClassificationOfLlama"]}, 0),
        ({"architectures": [7]}, 0),
        (CLASSIFIER, 2),
        (CLASSIFIER | {"num_labels": 5}, 5),
        (CLASSIFIER | {"id2label": {"0": "a"}}, 1),
        (CLASSIFIER | {"id2label": {"0": "a", "1": "b", "2": "c"}, "num_labels": 5}, 3),
        ({"architectures": ["Other", "Qwen2ForSequenceClassification"]}, 2),
    ],
)
def test_labels_are_counted(config, labels):
    assert read_labels(config, "here") == labels


def test_a_number_that_is_none_is_refused():
    with pytest.raises(InputError, match=r"^here: num_labels must be int, not '5'"):
        read_labels(CLASSIFIER | {"num_labels": "5"}, "here")


@pytest.mark.parametrize("labels", [1, 2, 3])
def test_what_is_written_is_read(labels):
    written = write_labels(labels)
    assert read_labels(CLASSIFIER | written, "here") == labels
    assert written["label2id"] == {name: int(i) for i, name in written["id2label"].items()}


def test_a_language_model_has_none():
    assert write_labels(0) == {}
