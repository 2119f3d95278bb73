"""Tests that hold for every optimizer."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from rl4p.distributed.mesh import Mesh
from rl4p.learner.optimizer.adafactor import Adafactor
from rl4p.learner.optimizer.adamw import AdamW
from rl4p.learner.optimizer.adamw_8bit import AdamW8Bit
from rl4p.learner.optimizer.lion import Lion
from rl4p.learner.optimizer.muon import Muon
from rl4p.learner.optimizer.options import OptimizerOptions
from rl4p.learner.optimizer.sgd import SGD
from rl4p.runs.checkpoint import Orbax, as_saved

pytestmark = pytest.mark.mixed_dtypes

CONF = Path(__file__).resolve().parents[3] / "conf" / "optimizer"
OPTIMIZERS = [Adafactor, AdamW, AdamW8Bit, Lion, Muon, SGD]
PARAMS = {
    "embedding": jnp.full((2, 2), 10.0),
    "layers": {
        "query": {
            "kernel": jnp.full((1, 2, 2), 10.0),
            "bias": jnp.full((1, 2), 10.0),
            "lora_a": jnp.full((1, 2, 1), 10.0),
        },
        "experts": {"gate": jnp.full((1, 2, 2, 2), 10.0)},
    },
    "norm": {"scale": jnp.full(2, 10.0)},
    "value": {"kernel": jnp.full(2, 10.0), "bias": jnp.asarray(10.0)},
}


def as_gradient(value, params=PARAMS):
    return jax.tree.map(lambda x: jnp.full(x.shape, value, x.dtype), params)


def first_update(optimizer, gradient):
    transform = optimizer.transform()
    return jax.jit(lambda g: transform.update(g, transform.init(PARAMS), PARAMS))(gradient)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_decay_touches_matrices_only(optimizer):
    decayed, _ = first_update(optimizer(weight_decay=0.1), as_gradient(0.0))
    assert jax.tree.map(lambda x: round(float(jnp.mean(x)), 5), decayed) == {
        "embedding": -1.0,
        "layers": {
            "query": {"kernel": -1.0, "bias": 0.0, "lora_a": -1.0},
            "experts": {"gate": -1.0},
        },
        "norm": {"scale": 0.0},
        "value": {"kernel": 0.0, "bias": 0.0},
    }


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("limit", "scale"), [(0.0, 1.0), (100.0, 1.0), (2.0, 0.5)])
def test_a_long_gradient_is_scaled_down_to_the_limit(optimizer, limit, scale):
    """A gradient of norm 4 (25 entries of 0.8) acts as one that is shorter by the scale."""
    long = as_gradient(0.8)
    _, state = first_update(optimizer(max_grad_norm=limit), long)
    shorter = jax.tree.map(lambda x: scale * x, long)
    _, expected = first_update(optimizer(max_grad_norm=0), shorter)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5),
        *map(jax.tree.leaves, (state, expected)),
    )
    assert any(leaf.size > 1 for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_learning_rate_is_the_schedule_and_not_in_the_update(optimizer):
    options = {"schedule": "linear", "warmup_steps": 4, "total_steps": 8, "final_fraction": 0.5}
    rates = [optimizer(learning_rate=2.0, **options).learning_rate_at(s) for s in (0, 4, 6, 8)]
    np.testing.assert_allclose(rates, [0.5, 2, 1.5, 1])
    one, other = (
        first_update(optimizer(learning_rate=rate, **options), as_gradient(0.3))[0]
        for rate in (1.0, 2.0)
    )
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "bfloat16"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_state_that_is_given_up_in_training_comes_back_from_a_checkpoint(
    tmp_path, params, make_state, optimizer, dtype
):
    """As in a run, a compiled init begins the state, and a scan carries it in donated arrays."""
    momentum = {"momentum": 0.9} if hasattr(optimizer, "momentum") else {}
    dtypes = {"moment_dtype": dtype} if hasattr(optimizer, "moment_dtype") else {}
    optimizer = optimizer(**dtypes, **momentum)
    transform, mesh = optimizer.transform(), Mesh(dp=1)
    begin = jax.jit(transform.init, out_shardings=mesh.replicated)
    gradient = as_gradient(1e-3, params)

    def run(state):
        def one_update(state, _):
            return transform.update(gradient, state, params)[1], None

        return jax.lax.scan(one_update, state, length=2)[0]

    fresh = begin(params)
    trained = jax.jit(run, donate_argnums=0)(begin(params))
    like = make_state(params, optimizer)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), trained) == jax.tree.map(
        lambda x: (x.shape, x.dtype), like.optimizer_state
    )
    saved = make_state(params, optimizer, step=2)
    saved = replace(saved, optimizer_state=trained)
    with Orbax().open(tmp_path, {}) as checkpoints:
        checkpoints.save(saved)
        checkpoints.manager.wait_until_finished()
        restored = checkpoints.restore(like)
    left, right = (jax.tree.leaves(as_saved(x)["optimizer_state"]) for x in (restored, saved))
    assert jax.tree.structure(restored.optimizer_state) == jax.tree.structure(fresh)
    for a, b in zip(left, right, strict=True):
        assert isinstance(a, jax.Array)
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_an_end_of_the_learning_rate_needs_a_schedule():
    with pytest.raises(ValueError, match=r"final_fraction=0\.1 has no effect with schedule=const"):
        OptimizerOptions(learning_rate=1.0, final_fraction=0.1)
    OptimizerOptions(learning_rate=1.0, final_fraction=0.1, schedule="cosine")


@pytest.mark.parametrize(
    ("optimizer", "option", "word"),
    [
        (Adafactor, {"moment_dtype": "bfloat16"}, "moment_dtype=bfloat16"),
        (SGD, {"moment_dtype": "bfloat16"}, "moment_dtype=bfloat16"),
        (SGD, {"nesterov": True}, "nesterov=true"),
    ],
)
def test_options_of_the_momentum_need_a_momentum(optimizer, option, word):
    with pytest.raises(ValueError, match=f"{word} has no effect with momentum=0: set momentum"):
        optimizer(momentum=0.0, **option)
    optimizer(momentum=0.5, **option)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_yaml_has_the_defaults_of_the_class(optimizer):
    """Only the end of the schedule differs: it is the end of the run."""
    written = OmegaConf.load(CONF / f"{optimizer.__module__.rpartition('.')[2]}.yaml")
    written = OmegaConf.merge({"optimizer": written}, {"steps": 7})
    assert instantiate(written.optimizer) == optimizer(total_steps=7)


def test_the_defaults_change_nothing_but_the_length_of_a_gradient():
    options = OptimizerOptions(learning_rate=0.5)
    assert (options.schedule, options.warmup_steps, options.total_steps) == ("constant", 0, 1)
    assert (options.weight_decay, options.max_grad_norm) == (0.0, 1.0)
    np.testing.assert_array_equal([options.learning_rate_at(s) for s in (0, 1, 9)], 0.5)


def test_the_gradient_is_clipped_before_the_direction_and_the_decay_is_not():
    """The norm 5 is clipped to 1 and doubled; half the parameter is added; the sum is negated."""
    options = OptimizerOptions(learning_rate=1.0, max_grad_norm=1.0, weight_decay=0.5)
    transform = options.descent(optax.scale(2.0))
    params = {"kernel": jnp.asarray([[10.0, -20.0]])}
    update, _ = transform.update(
        {"kernel": jnp.asarray([[3.0, 4.0]])}, transform.init(params), params
    )
    np.testing.assert_allclose(update["kernel"], [[-1.2 - 5, -1.6 + 10]], rtol=1e-6)
