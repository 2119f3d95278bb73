"""Tests that keys of config.json are read strictly, in several versions, and written."""

import dataclasses
import math

import pytest

from rl4p.base.errors import InputError
from rl4p.model.families.keys import (
    Keys,
    read_labels,
    write_labels,
    write_layer_types,
    write_scaling,
    write_shape,
)
from rl4p.model.rope import DynamicScaling, LinearScaling, Llama3Scaling, LongScaling, YarnScaling
from tests.golden.cases import LLAMA3, SHAPE, YARN, decoder_config

LLAMA3_SCALING = Llama3Scaling(
    factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_max_positions=64
)

YARN_SCALING = YarnScaling(
    factor=8.0, original_max_positions=64, fast_turns=4.0, slow_turns=0.5, magnitude=1.25
)

LONG = {"rope_type": "longrope", "short_factor": [1, 2.5], "long_factor": [3, 4]}

LONG_SCALING = LongScaling(
    factors=(1.0, 2.5),
    long_factors=(3.0, 4.0),
    original_max_positions=64,
    max_positions=512,
    magnitude=1.5**0.5,
)


def keys(**config):
    return Keys(config, "here")


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (3, int, 3),
        (3, float, 3.0),
        (0.5, float, 0.5),
        (False, bool, False),
        (0, int, 0),
        ([], list, []),
    ],
)
def test_a_value_has_the_kind_that_was_asked_for(value, kind, expected):
    read = keys(a=value).get("a", kind)
    assert read == expected
    assert type(read) is kind


def test_null_is_as_if_a_key_were_absent():
    assert keys(a=None).get("a", int, 7) == keys().get("a", int, 7) == 7
    for absent in (keys(a=None), keys()):
        with pytest.raises(InputError, match=r"^here has no 'a'\.$"):
            absent.get("a", int)


@pytest.mark.parametrize(
    ("value", "kind"), [("3", int), (True, int), (3.0, int), (True, float), (1, bool), ({}, list)]
)
def test_another_kind_is_refused(value, kind):
    with pytest.raises(InputError, match=rf"^here: a must be {kind.__name__}, not "):
        keys(a=value).get("a", kind)


@pytest.mark.parametrize("value", [-1, 0, 2**31])
@pytest.mark.parametrize(
    "key", ["hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"]
)
def test_a_size_is_above_zero_and_no_larger_than_an_index(key, value):
    whole = write_shape(decoder_config("llama"))
    assert Keys(whole, "here").shape()["width"] == decoder_config("llama").width
    with pytest.raises(InputError, match=f"^here: {key} must be from 1 to 2,147,483,647, not"):
        Keys(whole | {key: value}, "here").shape()


def test_heads_wider_than_the_model_are_refused():
    whole = write_shape(decoder_config("llama")) | {"head_dim": None, "hidden_size": 1}
    with pytest.raises(InputError, match="head_dim must be from 1"):
        Keys(whole, "here").shape()


def test_what_the_decoder_does_not_follow_is_refused():
    for config in ({}, {"a": None}, {"a": "silu"}):
        keys(**config).must_be("a", "silu")
    with pytest.raises(InputError, match=r"^here requires activation 'gelu', which is not supp"):
        keys(a="gelu").must_be("a", "silu", "activation")
    with pytest.raises(InputError, match=r"^here requires a False, which"):
        keys(a=False).must_be("a", None)


@pytest.mark.parametrize(
    ("config", "theta", "scaling"),
    [
        ({}, 10_000.0, None),
        ({"rope_theta": 7}, 7.0, None),
        ({"rope_theta": None}, 10_000.0, None),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}, 5.0, None),
        ({"rope_theta": 5.0, "rope_parameters": {"rope_theta": 5.0}}, 5.0, None),
        (
            {"rope_theta": 3.0, "rope_scaling": {"type": "linear", "factor": 2}},
            3.0,
            LinearScaling(factor=2.0),
        ),
        (
            {"rope_scaling": {"rope_type": "linear", "type": "linear", "factor": 2}},
            10_000.0,
            LinearScaling(factor=2.0),
        ),
        (
            {
                "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 9.0},
                "rope_scaling": {"type": "linear", "factor": 4},
                "rope_theta": 9,
            },
            9.0,
            LinearScaling(factor=4.0),
        ),
        ({"rope_scaling": LLAMA3}, 10_000.0, LLAMA3_SCALING),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, 10_000.0, DynamicScaling(factor=2.0)),
        (
            {"max_position_embeddings": 99, "rope_scaling": {"type": "yarn", "factor": 4}},
            10_000.0,
            YarnScaling(factor=4.0, original_max_positions=99, magnitude=1 + 0.1 * math.log(4.0)),
        ),
        (
            {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 0.5, "truncate": False}},
            10_000.0,
            dataclasses.replace(
                YARN_SCALING,
                truncated=False,
                magnitude=(1 + 0.1 * math.log(8)) / (1 + 0.05 * math.log(8)),
            ),
        ),
        (
            {
                "max_position_embeddings": 99,
                "rope_scaling": LLAMA3 | {"original_max_position_embeddings": None},
            },
            10_000.0,
            dataclasses.replace(LLAMA3_SCALING, original_max_positions=99),
        ),
    ],
)
def test_the_rope_options_of_several_versions(config, theta, scaling):
    assert keys(**config).rope() == {"rope_theta": theta, "rope_scaling": scaling}


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"rope_scaling": {"type": "ntk", "factor": 4}}, "^here requires rope type 'ntk'"),
        ({"rope_scaling": LONG}, "^here requires rope type 'longrope'"),
        ({"rope_scaling": {"type": "yarn"}}, "^here, in rope_parameters, has no 'factor'"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "^here, in rope_parameters, has no 'factor'"),
        ({"rope_scaling": "linear"}, "^here: rope_scaling must be dict, not 'linear'"),
        ({"partial_rotary_factor": 0.5}, "^here requires partial_rotary_factor 0.5"),
        ({"rope_theta": 3.0, "rope_parameters": {"rope_theta": 5.0}}, "^here: rope_theta and the"),
        (
            {"rope_parameters": {"rope_theta": 5.0}, "rope_scaling": {"type": "default"}},
            "^here: rope_scaling and rope_parameters differ",
        ),
        (
            {
                "rope_parameters": {"rope_type": "linear", "factor": 4.0},
                "rope_scaling": {"rope_type": "linear", "factor": 2.0},
            },
            "^here: rope_scaling and rope_parameters differ",
        ),
        (
            {"rope_scaling": LLAMA3, "original_max_position_embeddings": 7},
            "^here: original_max_position_embeddings and the one of its rope section differ",
        ),
        ({"rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 2}}, "type 'yarn'"),
        ({"rope_scaling": {"rope_type": "default", "factor": 2}}, "^here requires factor 2 with"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2, "attention_factor": 2}},
            "^here requires attention_factor 2 with rope type 'linear'",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 3.0}}},
            "^here requires full_attention {'rope_theta': 3.0} with",
        ),
        (
            {"rope_parameters": {"partial_rotary_factor": 0.5}},
            "^here, in rope_parameters, requires partial_rotary_factor 0.5",
        ),
    ],
)
def test_other_rotations_are_refused(config, sentence):
    with pytest.raises(InputError, match=sentence):
        keys(**config).rope()


def test_the_shape_is_read_from_its_keys():
    shape = keys(**SHAPE | {"head_dim": 16, "num_hidden_layers": 5}).shape()
    assert shape == {
        "vocabulary": 64,
        "width": 32,
        "layers": 5,
        "heads": 4,
        "num_kv_heads": 2,
        "head_width": 16,
        "feed_forward_width": 48,
        "max_positions": 512,
        "norm_epsilon": 1e-5,
    }


def test_a_head_is_as_wide_as_the_family_says_or_as_the_width_leaves():
    absent = SHAPE | {"head_dim": None}
    assert keys(**absent).shape()["head_width"] == 8
    assert keys(**absent).shape(head_width=128)["head_width"] == 128
    assert keys(**SHAPE | {"head_dim": 16}).shape(head_width=128)["head_width"] == 16


def test_key_heads_are_as_many_as_query_heads_where_they_are_not_said():
    assert keys(**SHAPE | {"num_key_value_heads": None}).shape()["num_kv_heads"] == 4
    with pytest.raises(
        InputError, match="num_attention_heads 4 is not a multiple of num_key_value_h"
    ):
        keys(**SHAPE | {"num_key_value_heads": 3}).shape()


@pytest.mark.parametrize("key", ["vocab_size", "rms_norm_eps", "intermediate_size", "hidden_size"])
def test_a_shape_needs_all_of_its_keys(key):
    with pytest.raises(InputError, match=f"^here has no '{key}'"):
        keys(**SHAPE | {key: None}).shape()


def test_layers_slide_by_their_names_or_else_by_the_default():
    default = [True, False, False]
    assert keys(**SHAPE).sliding(9, default) == {"window": 9, "sliding": (True, False, False)}
    types = ["full_attention", "sliding_attention", "sliding_attention"]
    named = keys(**SHAPE | {"layer_types": types}).sliding(9, default)
    assert named == {"window": 9, "sliding": (False, True, True)}
    assert keys(**SHAPE).sliding(None, default) == {}
    assert keys(**SHAPE).sliding(9, [False] * 3) == {}
    assert keys(**SHAPE | {"layer_types": ["full_attention"] * 3}).sliding(9, default) == {}


def test_layer_types_are_written_as_they_are_read():
    config = decoder_config("gemma2")
    named = keys(num_hidden_layers=3, layer_types=write_layer_types(config))
    assert named.sliding(9, [False] * 3)["sliding"] == config.sliding
    assert write_layer_types(decoder_config("qwen3")) == ["full_attention"] * 3


def test_the_shape_is_written_in_the_keys_it_is_read_from():
    config = decoder_config("qwen3")
    found = write_shape(config)
    assert found == SHAPE | {"head_dim": 16}


def test_long_factors_are_read_and_written():
    """The factor is 512 / 64 = 8, and ln 8 / ln 64 is a half."""
    config = {"max_position_embeddings": 512, "original_max_position_embeddings": 64}
    assert keys(**config).scaling(LONG, long=True) == LONG_SCALING
    assert keys(**config).scaling(write_scaling(LONG_SCALING), long=True) == LONG_SCALING
    for wrong in ("1", ["1"], [], [True]):
        with pytest.raises(InputError, match="long_factor must be "):
            keys(**config).scaling(LONG | {"long_factor": wrong}, long=True)


@pytest.mark.parametrize(
    "scaling",
    [
        *(None, LinearScaling(factor=4.0), DynamicScaling(factor=2.0)),
        *(LLAMA3_SCALING, YARN_SCALING, dataclasses.replace(YARN_SCALING, truncated=False)),
    ],
)
def test_rope_options_are_written_as_they_are_read(scaling):
    config = dataclasses.replace(decoder_config("llama"), rope_theta=5.0, rope_scaling=scaling)
    read = keys(**write_shape(config)).rope()
    assert read == {"rope_theta": 5.0, "rope_scaling": scaling}


def test_the_scaling_of_llama_is_written_in_its_own_keys():
    assert write_scaling(LLAMA3_SCALING) == LLAMA3


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
