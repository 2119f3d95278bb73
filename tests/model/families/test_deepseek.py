"""Tests what is read and refused of families with latent attention; golden files test the rest."""

import pytest

from rl4p.base.errors import InputError
from tests.golden.cases import changed_config


@pytest.mark.parametrize(
    ("case", "changes", "words"),
    [
        ("deepseek_v3", {"first_k_dense_replace": 3}, "no layer with experts"),
        ("deepseek_v3", {"num_local_experts": 4}, "num_local_experts 4"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func 'softmax'"),
        ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq 2"),
        ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method 'noaux_tc'"),
        ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob True"),
        ("glm4_moe_lite", {"mlp_layer_types": ["dense"]}, "mlp_layer_types with 1 entries"),
    ],
)
def test_what_is_not_computed_is_refused(case, changes, words):
    with pytest.raises(InputError) as error:
        changed_config(case, **changes)
    assert words in str(error.value)


def test_null_is_no_rank_and_no_factor():
    assert changed_config("deepseek_v3", q_lora_rank=None)[0].latent.query_rank is None
    config, _ = changed_config("minicpm3", scale_depth=None, dim_model_base=None)
    assert (config.residual_multiplier, config.logits_multiplier) == (1.0, 1.0)
    assert changed_config("minicpm3", v_head_dim=None)[0].latent.value_width == 32 // 4


def test_groups_have_an_effect_with_their_method_only():
    assert changed_config("deepseek_v2")[0].router.groups == 4
    config, keys = changed_config("deepseek_v2", topk_method="greedy")
    assert config.router.groups == 1
    assert {"n_group", "topk_group"} <= keys.read
