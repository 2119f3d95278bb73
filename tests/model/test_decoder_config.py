"""Tests the properties of a decoder's configuration, and the values that it refuses."""

import dataclasses

import pytest

from rl4p.model.decoder_config import DecoderConfig
from tests.golden.cases import decoder_config


def test_options_that_contradict_each_other_are_refused():
    config = decoder_config("gemma2")
    for change, sentence in (
        ({"window": None}, "sliding has 3 entries and window is None"),
        ({"sliding": (True,)}, "sliding has 1 entries and window is 9"),
        ({"unrotated": (True,)}, "unrotated has 1 entries"),
        ({"chosen_experts": 1}, "chosen_experts=1 is more than experts=0"),
    ):
        with pytest.raises(ValueError, match=sentence):
            dataclasses.replace(config, **change)


def test_as_many_experts_as_there_are_may_be_chosen():
    config = decoder_config("qwen3_moe")
    assert dataclasses.replace(config, chosen_experts=6).chosen_experts == 6
    with pytest.raises(ValueError, match="chosen_experts=7 is more than experts=6"):
        dataclasses.replace(config, chosen_experts=7)


def test_the_kinds_of_layers():
    for case, kinds in (
        ("qwen3", {(False, False)}),
        ("mistral", {(True, False)}),
        ("gemma2", {(False, False), (True, False)}),
        ("smollm3", {(False, False), (False, True)}),
        ("smollm3_window", {(False, False), (True, True)}),
    ):
        config = decoder_config(case)
        assert len(config.kinds) == config.layers
        assert {kind[:2] for kind in config.kinds} == kinds


def test_its_dimensions_are_those_that_devices_divide():
    config = DecoderConfig(
        vocabulary=24, width=16, layers=2, heads=4, num_kv_heads=2, head_width=4,
        feed_forward_width=20, max_positions=32,
    )  # fmt: skip
    assert config.dimensions == {
        "width": 16,
        "vocabulary": 24,
        "heads": 4,
        "num_kv_heads": 2,
        "feed_forward": 20,
    }
    config = dataclasses.replace(config, experts=6, chosen_experts=2)
    assert config.dimensions.keys() == {
        "width", "vocabulary", "heads", "num_kv_heads", "experts"
    }  # fmt: skip


def test_a_plain_decoder_is_that_of_qwen2():
    config = DecoderConfig(
        vocabulary=8, width=8, layers=1, heads=1, num_kv_heads=1, head_width=8,
        feed_forward_width=8, max_positions=8,
    )  # fmt: skip
    assert (config.family, config.rope_theta, config.norm_epsilon) == ("qwen2", 10_000.0, 1e-6)
    assert config.attention_bias
    assert config.tied_embedding
    assert config.activation == "silu"
    off = (
        *("rope_scaling", "local_rope_theta", "centered_norm", "post_norms", "query_key_norm"),
        *("query_scalar", "attention_softcap", "logits_softcap", "window", "sliding"),
        *("rotary_width", "interleaved_rope", "unrotated"),
        *("scaled_embedding", "experts", "chosen_experts", "normalized_experts", "labels"),
    )
    assert not any(getattr(config, name) for name in off)
