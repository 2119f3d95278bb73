import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.distributed.mesh import ONE_DEVICE, Mesh
from rl4p.model.decoder import Decoder, DecoderConfig
from rl4p.model.lora import LoRA
from rl4p.model.policy import Policy, pad_left, padded_width


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


@pytest.mark.parametrize(
    "options",
    [{}, {"attention_bias": True}, {"query_key_norm": "head"}, {"query_key_norm": "whole"}],
    ids=lambda options: (
        "".join(options.values()) if options.get("query_key_norm") else str(options)
    ),
)
def test_copies_of_kv_heads_change_no_token(monkeypatch, options):
    """With two KV heads for eight query heads, and with four copies of each."""
    shape = {"vocabulary": 24, "width": 16, "layers": 2, "heads": 8, "num_kv_heads": 2}
    config = DecoderConfig(
        **shape, head_width=4, feed_forward_width=20, max_positions=32, **options
    )
    decoder, lora = Decoder(config=config, lora=LoRA(rank=2)), LoRA(rank=2)
    random = np.random.default_rng(0)

    def drawn(x):
        return jnp.asarray(random.normal(size=x.shape), jnp.float32) * 0.3

    frozen = jax.tree.map(drawn, jax.eval_shape(decoder.init, jax.random.key(0)))
    adapters = jax.tree.map(drawn, jax.eval_shape(lora.init, jax.random.key(0), frozen))
    policy = Policy(
        decoder=decoder, tokenizer=None, mesh=ONE_DEVICE, end_ids=(), pad_id=0, frozen=frozen
    )
    tokens = random.integers(0, 24, size=(3, 7))
    positions = np.broadcast_to(np.arange(7), tokens.shape)

    def hidden(policy):
        decoder = policy.sampling_decoder
        cache = decoder.empty_cache(3, 8)
        rows = tokens, positions, np.ones_like(tokens)
        return decoder.extend(policy.for_sampling(adapters), *map(np.int32, rows), cache, 0)

    plain, _ = hidden(policy)
    monkeypatch.setattr(Mesh, "kv_copies", lambda mesh, heads: 4)
    copied, cache = hidden(dataclasses.replace(policy))
    assert cache.layers[0][0].shape == (3, 8, 4, 8)
    np.testing.assert_allclose(plain, copied, rtol=1e-5, atol=1e-6)
