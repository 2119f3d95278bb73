import dataclasses

import jax
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.model.decoder_config import ConvolutionConfig, LatentConfig
from rl4p.model.exact_sums import OTHER_DIGITS
from rl4p.model.policy import pad_left, padded_width


@pytest.mark.parametrize(
    ("longest", "width"), [(1, 16), (16, 16), (17, 32), (32, 32), (33, 64), (1000, 1024)]
)
def test_widths_are_few(longest, width):
    assert padded_width(longest) == width


def test_contexts_are_padded_left_and_the_mask_says_so():
    rows = [(5, 6, 7), (3, 9), tuple(range(16))]
    tokens, mask = pad_left(rows, 3)
    assert tokens.shape == mask.shape == (3, 16)
    for row, context in enumerate(rows):
        assert tuple(tokens[row][mask[row]]) == context
        np.testing.assert_array_equal(mask[row], np.arange(16) >= 16 - len(context))
    assert (tokens[~mask] == 3).all()


def test_a_sampler_is_given_no_critic(policy):
    trained = {"layers": {"up": {"lora_a": 1}}, "critic": {"value": 2}}
    adapted = dataclasses.replace(policy, frozen={"layers": {"up": {"kernel": 3}}, "norm": 4})
    without = {"layers": {"up": {"kernel": 3, "lora_a": 1}}, "norm": 4}
    assert adapted.merged(trained) == without | {"critic": {"value": 2}}
    assert adapted.without_critic(trained) == without


LATENT = LatentConfig(rank=8, query_rank=None, unrotated_width=8, rotated_width=4, value_width=8)


@pytest.mark.parametrize(
    ("options", "mixer", "reason"),
    [
        pytest.param(
            *({"exact": True}, "attention", "rounds what model.exact=true keeps in every digit"),
            marks=pytest.mark.skipif(
                jax.__version_info__ >= OTHER_DIGITS, reason="model.exact is refused"
            ),
        ),
        ({}, "latent", "cache latents, which have no heads, and no keys: leave it out"),
        ({}, "convolution", "cache states and no keys: leave it out"),
    ],
)
def test_a_cache_in_int8_is_refused_where_it_cannot_act(policy, options, mixer, reason):
    config = dataclasses.replace(
        policy.decoder.config, mixers=(mixer,) * policy.decoder.config.layers
    )
    if mixer == "latent":
        config = dataclasses.replace(config, latent=LATENT, head_width=12, rotary_width=4)
    if mixer == "convolution":
        config = dataclasses.replace(config, convolution=ConvolutionConfig())
    decoder = dataclasses.replace(policy.decoder, config=config, **options)
    other = dataclasses.replace(policy, decoder=decoder)
    assert other.with_kv_cache("auto").decoder == decoder
    with pytest.raises(InputError, match="kv_cache_dtype=int8 .*" + reason):
        other.with_kv_cache("int8")
