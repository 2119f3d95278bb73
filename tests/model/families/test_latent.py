"""Tests what is read and refused of latent attention; golden files test what it computes."""

import pytest

from rl4p.base.errors import InputError
from rl4p.model.families import FAMILIES
from tests.golden.cases import YARN, changed_config, decoder_config


@pytest.mark.parametrize(
    ("case", "changes", "words"),
    [
        ("youtu", {"num_key_value_heads": 2}, "num_key_value_heads 2 of 4 heads"),
        ("youtu", {"head_dim": 8}, "head_dim 8"),
        ("youtu", {"qk_head_dim": 8}, "qk_head_dim 8"),
        ("youtu", {"qk_rope_head_dim": 5, "head_dim": "absent"}, "qk_rope_head_dim 5"),
        ("youtu", {"q_lora_rank": "absent"}, "has no 'q_lora_rank'"),
        ("youtu", {"v_head_dim": None}, "has no 'v_head_dim'"),
        ("youtu", {"rope_parameters": YARN | {"mscale": 0.7}}, "rope_scaling and rope_parameters"),
        ("minicpm3", {"qk_rope_head_dim": 8, "head_dim": 8}, "must have 4 numbers"),
        ("mistral4", {"rope_parameters": None}, "has no 'rope_parameters'"),
        ("mistral4", {"rope_parameters": YARN}, "has no 'llama_4_scaling_beta'"),
        ("mistral4", {"rope_parameters": {"rope_type": "linear"}}, "rope type 'linear'"),
        ("mistral4", {"head_dim": 4}, "head_dim 4"),
    ],
)
def test_what_is_not_computed_is_refused(case, changes, words):
    with pytest.raises(InputError) as error:
        changed_config(case, **changes)
    assert words in str(error.value)


def test_the_growth_of_mistral_is_read_beside_what_others_read():
    config, keys = changed_config("mistral4")
    assert (config.latent.query_growth, config.latent.score_growth) == (0.3, 1.0)
    assert {"rope_parameters", "rope_scaling", "n_routed_experts"} <= keys.read


def test_an_export_has_two_equal_scales_where_they_leave_rotations_alone():
    written = FAMILIES["deepseek_v2"].write_config(decoder_config("deepseek_v2"))
    section = written["rope_scaling"]
    assert section["mscale"] == section["mscale_all_dim"] == 0.7
    assert "attention_factor" not in section
    section = FAMILIES["youtu"].write_config(decoder_config("youtu"))["rope_scaling"]
    assert section["attention_factor"] != 1
    assert section["mscale_all_dim"] == 0.9
