import jax
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.configuration import compose
from rl4p.distributed.mesh import ONE_DEVICE
from rl4p.loop.loop import train
from rl4p.model.huggingface import read_config, write_policy
from rl4p.model.rope import LinearScaling
from rl4p.model.scratch import Scratch
from rl4p.runs.build import build


def test_a_policy_from_scratch_knows_every_token(policy):
    assert policy.decoder.config.vocabulary == 264  # 256 bytes and 5 special tokens, rounded up
    assert policy.decoder.config.head_width == 8
    assert policy.end_ids == (policy.tokenizer.eos_token_id,)
    assert policy.pad_id not in policy.end_ids


@pytest.mark.parametrize("layers", [{"remat": "layer"}, {"remat": "none", "unroll": True}])
def test_how_layers_run_is_an_option(layers):
    options = {"dtype": "bfloat16"} | layers
    decoder = Scratch(width=24, heads=3, **options).policy(ONE_DEVICE).decoder
    assert {name: getattr(decoder, name) for name in options} == options


@pytest.mark.parametrize("shape", [{"width": 30, "heads": 4}, {"heads": 3, "num_kv_heads": 2}])
def test_heads_that_do_not_divide_are_refused(shape):
    with pytest.raises(ValueError, match="must be a multiple of heads"):
        Scratch(**{"width": 24} | shape)


def test_the_shape_and_how_positions_are_rotated_are_options():
    config = Scratch(
        width=24, heads=3, layers=2, feed_forward_width=40, vocabulary=300, max_positions=77,
        rope_theta=123.0, rope_scaling=LinearScaling(factor=3.0),
    ).policy(ONE_DEVICE).decoder.config  # fmt: skip
    shape = ("width", "heads", "num_kv_heads", "head_width", "layers", "feed_forward_width")
    assert [getattr(config, name) for name in shape] == [24, 3, 1, 8, 2, 40]
    assert (config.vocabulary, config.max_positions) == (300, 77)
    assert (config.rope_theta, config.rope_scaling) == (123.0, LinearScaling(factor=3.0))
    assert config.tied_embedding


@pytest.mark.parametrize(("bias", "family"), [(True, "qwen2"), (False, "llama")])
def test_without_biases_it_is_a_llama(bias, family):
    policy, params = Scratch(width=24, heads=3, attention_bias=bias).abstract(ONE_DEVICE)
    config = policy.decoder.config
    assert (config.family, config.attention_bias) == (family, bias)
    assert ("bias" in params["layers"]["query"]) is bias


@pytest.mark.slow
def test_it_may_have_the_shape_of_qwen_3_5(tmp_path):
    """Its folder is one of that family."""
    policy, params = Scratch(
        width=48, heads=3, layers=4, attention_interval=3, attention_bias=False
    ).build(ONE_DEVICE, jax.random.key(0))
    config = policy.decoder.config
    assert config.mixers == ("delta", "delta", "attention", "delta")
    assert (config.head_width, config.rotary_width) == (16, 4)
    write_policy(tmp_path / "out", policy, params)
    assert read_config(tmp_path / "out") == config
    wide = Scratch(width=24, heads=3, attention_interval=1).policy(ONE_DEVICE).decoder.config
    assert (wide.mixers, wide.rotary_width, wide.output_bias) == (("attention",) * 3, 2, True)


@pytest.mark.slow
@pytest.mark.mixed_dtypes
def test_a_policy_of_the_shape_of_qwen_3_5_learns():
    """Sampling goes on from states, and training reads whole rows: they give one probability."""
    words = [
        *("model=scratch", "model.width=32", "model.layers=2", "model.heads=2", "tracker=none"),
        *("model.attention_interval=2", "data.train_size=16", "data.held_out_size=8", "steps=2"),
        *("prompts_per_step=4", "group_size=4", "max_response_tokens=24"),
        "+reward.terms.capital._target_=rl4p.reward.form.Format",
        "+reward.terms.capital.pattern='.*[A-Z].*'",
    ]
    run = build(compose(words))
    for info in train(run.loop, run.state):
        assert info.metrics["update/grad_norm"] > 0
        assert info.metrics["rollout/logprob_gap_max"] < 1e-3


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_may_be_tied(tied):
    _, params = Scratch(width=24, heads=3, tied_embedding=tied).abstract(ONE_DEVICE)
    assert ("head" in params) is not tied


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parameters_have_a_dtype_of_their_own(dtype):
    model = Scratch(width=24, heads=3, layers=1, param_dtype=dtype)
    _, shapes = model.abstract(ONE_DEVICE)
    policy, params = model.build(ONE_DEVICE, jax.random.key(0))
    assert policy.decoder.dtype == "float32"
    for tree in (shapes, params):
        assert {x.dtype.name for x in jax.tree.leaves(tree)} == {dtype}
    exact = jax.jit(policy.decoder.init)(jax.random.key(0))
    rounded = jax.tree.map(lambda x: x.astype(dtype), exact)
    # A compiled program may round a number differently.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(np.float32(a), np.float32(b), rtol=1e-2),
        params,
        rounded,
    )


def test_the_key_decides_the_parameters():
    model = Scratch(width=24, heads=3, layers=1)
    first, second, other = (
        model.build(ONE_DEVICE, jax.random.key(seed))[1]["embedding"] for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)


def test_a_vocabulary_without_room_for_all_tokens_is_refused():
    with pytest.raises(InputError, match=r"model\.vocabulary=260 is less than the 261 tokens"):
        Scratch(vocabulary=260).policy(ONE_DEVICE)
    assert Scratch(vocabulary=261).policy(ONE_DEVICE).decoder.config.vocabulary == 261
