"""Everything a step changes is saved bit for bit, and what does not fit is named."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.checkpoint import Orbax, as_saved, restore_params
from rl4p.data.stream import PromptStream
from rl4p.errors import InputError
from rl4p.optimizer.adamw import AdamW


def stream_of(prompts, taken=0):
    stream = PromptStream(prompts, seed=3)
    stream.take(taken)
    return stream


def assert_equal(left, right):
    left, right = (jax.tree_util.tree_flatten_with_path(as_saved(x))[0] for x in (left, right))
    assert [path for path, _ in left] == [path for path, _ in right]
    for (path, a), (_, b) in zip(left, right, strict=True):
        assert a.dtype == b.dtype, path
        np.testing.assert_array_equal(a, b, err_msg=str(path))


def test_state_and_stream_come_back_bit_for_bit(tmp_path, params, prompts, make_state):
    state = make_state(params, AdamW(), step=4, memory={"advantage": {"mean": jnp.float32(0.3)}})
    with Orbax().open(tmp_path, stream_of(prompts, 7)) as checkpoints:
        checkpoints.save(state)
    stream = stream_of(prompts)
    fresh = replace(
        make_state(jax.tree.map(jnp.zeros_like, params), AdamW()),
        memory={"advantage": {"mean": jnp.float32(0)}},
        key=jax.random.key(99),
    )
    with Orbax().open(tmp_path, stream) as checkpoints:
        assert_equal(checkpoints.restore(fresh), state)
    assert stream.state() == stream_of(prompts, 7).state()


@pytest.mark.parametrize("attempt", range(5))
def test_a_save_is_of_its_step_though_the_next_update_is_given_the_arrays(tmp_path, attempt):
    """Saving goes on in the background while the donated arrays are written over."""
    state = {"w": jnp.full((1024, 1024), float(attempt)), "b": jnp.arange(2_000_000.0)}
    expected = jax.device_get(jax.tree.map(jnp.copy, state))
    write_over = jax.jit(lambda tree: jax.tree.map(lambda x: x * 0 - 1, tree), donate_argnums=0)
    train_state = make_plain_state(state)
    with Orbax().open(tmp_path, stream_of([])) as checkpoints:
        checkpoints.save(train_state)
        for _ in range(20):
            state = write_over(state)
        jax.block_until_ready(state)
    with Orbax().open(tmp_path, stream_of([])) as checkpoints:
        restored = checkpoints.restore(make_plain_state(jax.tree.map(jnp.zeros_like, state)))
    for name in expected:
        np.testing.assert_array_equal(restored.params[name], expected[name])


def make_plain_state(params):
    from rl4p.types import TrainState

    return TrainState(
        step=jnp.int32(1), params=params, optimizer_state=(), key=jax.random.key(0), memory={}
    )


def test_the_newest_is_restored_and_the_oldest_goes(tmp_path, params, prompts, make_state):
    with Orbax(keep=2).open(tmp_path, stream_of(prompts)) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(make_state(params, AdamW(), step=step))
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["2", "3"]
    with Orbax().open(tmp_path, stream_of(prompts)) as checkpoints:
        assert int(checkpoints.restore(make_state(params, AdamW())).step) == 3


def test_parameters_alone_are_read_without_a_trace(tmp_path, params, prompts, make_state):
    with Orbax().open(tmp_path, stream_of(prompts)) as checkpoints:
        checkpoints.save(make_state(params, AdamW(), step=1))
        checkpoints.save(make_state(jax.tree.map(lambda x: x + 1, params), AdamW(), step=2))
    files = sorted(tmp_path.rglob("*"))
    step, restored = restore_params(tmp_path, params)
    assert step == 2
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b + 1), restored, params)
    assert sorted(tmp_path.rglob("*")) == files
    with pytest.raises(InputError, match=r"head is absent there and"):
        restore_params(tmp_path, params | {"head": params["embedding"]})
    with pytest.raises(InputError, match=r"nowhere/checkpoints has no finished checkpoint"):
        restore_params(tmp_path / "nowhere", params)
    assert sorted(tmp_path.rglob("*")) == files


def test_without_a_checkpoint_there_is_nothing_to_resume(tmp_path, params, prompts, make_state):
    with (
        Orbax().open(tmp_path, stream_of(prompts)) as checkpoints,
        pytest.raises(InputError, match="no finished checkpoint"),
    ):
        checkpoints.restore(make_state(params, AdamW()))


@pytest.mark.parametrize(
    "change",
    [lambda x: x.astype(jnp.bfloat16), lambda x: jnp.concatenate([x, x])],
    ids=["dtype", "shape"],
)
def test_what_does_not_fit_is_named(tmp_path, params, prompts, make_state, change):
    with Orbax().open(tmp_path, stream_of(prompts)) as checkpoints:
        checkpoints.save(make_state(params, AdamW()))
    other = make_state(params, AdamW())
    other = replace(other, params=params | {"norm": {"scale": change(params["norm"]["scale"])}})
    with (
        Orbax().open(tmp_path, stream_of(prompts)) as checkpoints,
        pytest.raises(InputError) as caught,
    ):
        checkpoints.restore(other)
    sentence = "params/norm/scale is ((32,), 'float32') there and"
    assert sentence in str(caught.value)
    assert "embedding" not in str(caught.value)


def test_a_leaf_that_only_one_side_has_is_named(tmp_path, params, prompts, make_state):
    state = make_state(params, AdamW(), memory={"advantage": jnp.float32(0)})
    with Orbax().open(tmp_path, stream_of(prompts)) as checkpoints:
        checkpoints.save(make_state(params, AdamW()))
        checkpoints.save(replace(state, step=jnp.int32(1)))
    with Orbax().open(tmp_path, stream_of(prompts)) as checkpoints:
        with pytest.raises(InputError, match=r"memory/advantage is .* there and absent here\.$"):
            checkpoints.restore(make_state(params, AdamW()))
        # Nothing was moved by the attempt, and what fits is restored.
        assert checkpoints.stream.state() == stream_of(prompts).state()
        assert int(checkpoints.restore(state).step) == 1
