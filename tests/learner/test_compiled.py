"""Tests functions of a state: what they check and wait for, and that nested ones check nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.errors import RunError
from rl4p.base.types import TrainState
from rl4p.learner.compiled import compiled


def new_state():
    return TrainState(
        step=jnp.int32(0), params=jnp.ones(3), optimizer_state=(), key=jax.random.key(0), memory={}
    )


def test_a_donated_state_is_refused_before_the_other_check():
    checked = []

    @compiled("power", donates=True, check=lambda state, power: checked.append(power))
    def step(state, power):
        return TrainState(**vars(state) | {"params": state.params * 2.0**power})

    state = new_state()
    after = step(state, 3)
    assert after.params.tolist() == [8, 8, 8]
    assert checked == [3]
    with pytest.raises(RunError, match=r"^The buffers of this state were donated to an update: .*"):
        step(state, power=1)
    assert checked == [3]
    assert step(after, power=1).params.tolist() == [16, 16, 16]


def test_a_state_keeps_its_buffers_unless_they_are_donated():
    total = compiled()(lambda state: jnp.sum(state.params))
    state = new_state()
    assert total(state) == total(state) == 3


def test_an_argument_that_fails_leaves_the_state_its_buffers():
    class Failed:  # JAX on a CPU runs a program with a callback at once, and this one never
        def block_until_ready(self):
            raise FloatingPointError("the gradient failed")

    step = compiled(donates=True)(lambda state, gradient: state)
    state = new_state()
    with pytest.raises(FloatingPointError, match="the gradient failed"):
        step(state, Failed())
    state.check_not_donated()


def test_within_another_compiled_function_nothing_is_checked():
    checked = []

    @compiled(check=lambda state, x: checked.append(x))
    def double(state, x):
        return x + x

    assert jax.jit(lambda x: double(new_state(), x))(np.float32(2)) == 4
    assert checked == []


def test_a_program_is_traced_and_lowered_from_shapes():
    double = compiled()(lambda x: x + x)
    shape = jax.ShapeDtypeStruct((2,), np.float32)
    assert "add" in str(double.trace(shape).jaxpr)
    assert double.lower(shape).compile()(jnp.ones(2)).tolist() == [2, 2]
