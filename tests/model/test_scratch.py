import pytest

from rl4p.mesh import ONE_DEVICE
from rl4p.model.scratch import Scratch


def test_a_policy_from_scratch_knows_every_token(policy):
    assert policy.decoder.config.vocabulary == 264  # 256 bytes and five special tokens, by eights
    assert policy.decoder.config.head_width == 8
    assert policy.end_ids == (policy.tokenizer.eos_token_id,)
    assert policy.pad_id not in policy.end_ids


@pytest.mark.parametrize("layers", [{"remat": "layer"}, {"remat": "none", "unroll": True}])
def test_how_layers_run_is_an_option(layers):
    options = {"dtype": "bfloat16"} | layers
    decoder = Scratch(width=24, heads=3, **options).policy(ONE_DEVICE).decoder
    assert {name: getattr(decoder, name) for name in options} == options


@pytest.mark.parametrize("shape", [{"width": 30, "heads": 4}, {"heads": 3, "key_value_heads": 2}])
def test_heads_that_do_not_divide_are_refused(shape):
    with pytest.raises(ValueError, match="must divide by heads"):
        Scratch(**{"width": 24} | shape)
