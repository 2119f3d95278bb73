"""Attention to prompts that rows share, against attention to copies of them."""

import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.model.attention import AttentionInputs, attend
from rl4p.model.cache import KeysValues, QuantizedKeysValues
from rl4p.model.prompt_cache import PromptView, attend_with_prompt, taken


def expanded(x: QuantizedKeysValues) -> KeysValues:
    keys, values = (np.float32(scales) for scales in x.scales)
    values = np.float32(x.values_BKSh) * values.swapaxes(2, 3)
    return KeysValues(jnp.asarray(np.float32(x.keys_BKhS) * keys), jnp.asarray(values))


@pytest.mark.parametrize("T", [1, 3])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("int8", [False, True])
def test_parts_are_joined_to_the_attention_of_the_whole(T, sinks, cap, int8):
    """Rows 4, 0, 2 continue the first prompt and 1, 3 the second, in no order."""
    random = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(3 * random.normal(size=shape), jnp.float32)

    B, P, K, G, h, S, W = 5, 2, 2, 3, 8, 7, 11
    q, own = normal(B, T, K * G, h), KeysValues(normal(B, K, h, S), normal(B, K, S, h))
    prompt = KeysValues(normal(P, K, h, W), normal(P, K, W, h))
    own_mask, prompt_mask = (random.random(x) > 0.4 for x in ((B, T, S), (P, 3, T, W)))
    own_mask[0] = False  # it sees its prompt alone
    prompt_mask[1, 1] = False  # row 3 sees itself alone
    row_PM, place_B = np.int32([[4, 0, 2], [1, 3, 1]]), np.int32([1, 3, 2, 4, 0])
    of_B = place_B // 3
    if int8:
        own, prompt = (QuantizedKeysValues.of(*x, "float32") for x in (own, prompt))
    plain_own, plain_prompt = (expanded(x) if int8 else x for x in (own, prompt))
    copies = KeysValues(
        jnp.concatenate([plain_prompt.keys_BKhS[of_B], plain_own.keys_BKhS], axis=3),
        jnp.concatenate([plain_prompt.values_BKSh[of_B], plain_own.values_BKSh], axis=2),
    )
    of_rows = prompt_mask.reshape(-1, T, W)[place_B]
    whole = np.concatenate([of_rows, own_mask], axis=2)
    inputs = dict.fromkeys(("cos", "sin", "segment_ids_BT", "segment_ids_BS"))
    sinks_H = normal(K * G) if sinks else None
    options = {"query_scalar": 8.0, "softcap": cap, "sinks_H": sinks_H}
    view_of_whole = AttentionInputs(mask_BTS=jnp.asarray(whole), **inputs)
    expected = attend(q, *copies, view_of_whole, in_order=False, **options)
    if int8:
        copies = QuantizedKeysValues.of(*copies, "float32")
        arrays = q, copies.keys_BKhS, copies.values_BKSh
        options_of_int8 = options | {"in_order": False, "scales": copies.scales}
        alone = attend(*arrays, view_of_whole, **options_of_int8)
        np.testing.assert_allclose(alone, expected, atol=1e-5)
    view = PromptView(jnp.asarray(prompt_mask), row_PM, place_B, 1)
    inputs["mask_BTS"] = jnp.asarray(own_mask)
    joined = attend_with_prompt(q, own, prompt, AttentionInputs(**inputs, prompts=view), **options)
    np.testing.assert_allclose(joined, expected, atol=1e-5)


def test_indices_count_within_their_shard():
    x = jnp.arange(12).reshape(6, 2)
    index = np.int32([[1, 0], [2, 2]])
    np.testing.assert_array_equal(taken(x, index, 2), x[np.array([[1, 0], [5, 5]])])
    np.testing.assert_array_equal(taken(x, index, 1), x[index])
