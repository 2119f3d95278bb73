"""Tests the keys of families with experts, in groups."""

import re

import pytest

from rl4p.base.errors import InputError
from rl4p.model.router import Router


def test_the_router_of_deepseek_is_read(read):
    assert read("glm4_moe_norms").router == Router(
        score="sigmoid",
        corrected=True,
        groups=4,
        chosen_groups=2,
        factor=1.7,
        epsilon=1e-20,
        exact=True,
    )


@pytest.mark.parametrize(
    ("start", "end", "step", "expected"),
    [(0, -1, 1, "sss"), (1, 1, 1, "dsd"), (0, -1, 2, "dsd"), (2, -1, 3, "dds")],
)
def test_an_interval_of_layers_with_experts_comes_back(read, written, start, end, step, expected):
    keys = {
        "moe_layer_start_index": start,
        "moe_layer_end_index": end,
        "moe_layer_interval": step,
    }
    config = read("ernie4_5_moe", keys)
    kinds = "".join("s" if kind.feed_forward == "experts" else "d" for kind in config.kinds)
    assert kinds == expected
    assert read("ernie4_5_moe", written(config)) == config


@pytest.mark.parametrize("types", [["full_attention"] * 3, None])
def test_full_layers_of_exaone_are_not_rotated_where_there_is_a_window(read, written, types):
    config = read("exaone_moe", {"layer_types": types})
    assert config.unrotated == ((True,) * 3 if types else (False, True, False))
    assert read("exaone_moe", written(config)) == config
    without = read("exaone_moe", {"layer_types": ["full_attention"] * 3, "sliding_window": None})
    assert not without.unrotated
    assert read("exaone_moe", written(without)) == without


REFUSED = [
    ("glm4_moe", {"topk_group": 2}, "1 groups of 8 experts, of which 2 are chosen"),
    ("glm4_moe", {"n_group": 8, "topk_group": 4}, "at least 2 experts each"),
    ("glm4_moe", {"n_group": 4}, "fewer than the 3 experts"),
    ("glm4_moe", {"first_k_dense_replace": 3}, "no layer with experts"),
    ("glm4_moe", {"n_shared_experts": 0}, "n_shared_experts 0"),
    ("glm4_moe", {"num_local_experts": 9}, "num_local_experts 9"),
    ("dots1", {"num_experts_per_tok": 9}, "num_experts_per_tok 9, which is more than"),
    ("qwen2_moe", {"mlp_only_layers": [True]}, "mlp_only_layers"),
    ("qwen2_moe", {"mlp_only_layers": [0, 1, 2]}, "no layer with experts"),
    ("exaone_moe", {"mlp_layer_types": ["dense", "sparse"]}, "mlp_layer_types with 2 entries"),
    ("exaone_moe", {"mlp_layer_types": ["dense", "sparse", 1]}, "mlp_layer_types 1"),
    ("exaone_moe", {"sliding_window_pattern": "LLG"}, "sliding_window_pattern must be int"),
    ("ernie4_5_moe", {"use_bias": True}, "use_bias True"),
    ("ernie4_5_moe", {"moe_norm_min": 0.5}, "moe_norm_min 0.5"),
    ("flint", {"layer_types": None}, "has no 'layer_types'"),
    ("olmoe", {"sliding_window": 9}, "sliding_window 9"),
    ("olmoe", {"clip_qkv": 5.0}, "clip_qkv 5.0"),
    ("olmoe", {"head_dim": 16}, "head_dim 16"),
    ("solar_open", {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
    ("mixtral", {"layer_types": ["full_attention"] * 3}, "layer_types"),
]


@pytest.mark.parametrize(("case", "change", "words"), REFUSED)
def test_what_is_not_supported_is_refused_by_its_key(read, case, change, words):
    with pytest.raises(InputError, match=re.escape(words)):
        read(case, change)
