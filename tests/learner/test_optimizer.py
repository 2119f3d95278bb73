"""Tests of the optimizers, of their options and schedules, and of their blocks."""

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
from rl4p.learner.adamw_8bit import AdamW8Bit
from rl4p.learner.optimizer import (
    SGD,
    Adafactor,
    AdamW,
    Lion,
    Muon,
    OptimizerOptions,
    blockwise,
    is_inner_matrix,
    is_matrix,
    stacked_axes,
)
from rl4p.runs.checkpoint import Orbax, as_saved

pytestmark = pytest.mark.usefixtures("toys")


def rates(steps, **options):
    options = {
        "schedule": "constant",
        "warmup_steps": 0,
        "total_steps": 8,
        "final_fraction": 0.0,
    } | options
    return OptimizerOptions(learning_rate=2.0, **options).learning_rate_at(steps)


@pytest.mark.parametrize(
    ("options", "steps", "parts"),
    [
        ({}, 1, []),
        ({"warmup_steps": 1}, 2, []),
        ({"warmup_steps": 20}, 21, []),
        ({"schedule": "cosine", "warmup_steps": 7}, 8, []),
        ({"schedule": "linear"}, 4, []),  # another run goes on
        ({"schedule": "cosine", "final_fraction": 0.1}, 12, []),  # goes on at its last rate
        ({"warmup_steps": 1}, 1, ["warmup_steps=1, is not shorter than the run, steps=1"]),
        ({"warmup_steps": 20}, 2, ["the last step has 0.2 of a peak of 2."]),
        ({"warmup_steps": 8, "schedule": "linear"}, 8, ["the last step has 2 of a peak of 2."]),
        (
            {"warmup_steps": 10, "schedule": "cosine", "final_fraction": 0.5},
            12,
            ["warmup_steps=10, ends after its schedule, optimizer.total_steps=8"],
        ),
        ({"schedule": "cosine"}, 12, ["0 after step 8 of 12", "final_fraction"]),
        ({"schedule": "linear", "warmup_steps": 2}, 9, ["optimizer.schedule=linear ends there"]),
    ],
)
def test_what_a_run_misses_of_its_schedule_is_named(options, steps, parts):
    options = {"total_steps": 8} | options
    said = " ".join(OptimizerOptions(learning_rate=2.0, **options).unreached_rates(steps))
    assert bool(said) == bool(parts)
    for part in parts:
        assert part in said


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # at steps 0, 2, 4, 6, 8 and, after the end, 10
        ({}, [2, 2, 2, 2, 2, 2]),
        ({"schedule": "linear"}, [2, 1.5, 1, 0.5, 0, 0]),
        ({"schedule": "linear", "final_fraction": 0.1}, [2, 1.55, 1.1, 0.65, 0.2, 0.2]),
        ({"schedule": "cosine"}, [2, 1 + 0.5**0.5, 1, 1 - 0.5**0.5, 0, 0]),
        (
            {"schedule": "cosine", "final_fraction": 0.5},
            [2, 1.5 + 0.5**1.5, 1.5, 1.5 - 0.5**1.5, 1, 1],
        ),
        # the last step of the warm-up has the peak rate; the schedule starts after it
        ({"warmup_steps": 4}, [0.5, 1.5, 2, 2, 2, 2]),
        ({"warmup_steps": 4, "schedule": "linear"}, [0.5, 1.5, 2, 1, 0, 0]),
        ({"warmup_steps": 4, "schedule": "cosine"}, [0.5, 1.5, 2, 1, 0, 0]),
        ({"warmup_steps": 8, "schedule": "linear"}, [0.25, 0.75, 1.25, 1.75, 2, 0]),
    ],
    ids=str,
)
def test_by_hand(options, expected):
    np.testing.assert_allclose(rates(np.arange(0, 11, 2), **options), expected, atol=1e-6)


def test_the_last_step_of_the_warm_up_is_at_the_peak():
    np.testing.assert_allclose(
        rates(np.arange(5), warmup_steps=3), [2 / 3, 4 / 3, 2, 2, 2], rtol=1e-6
    )


# name: (shape, is_matrix, is_inner_matrix, stacked_axes); L = 2, E = 3
LEAVES = {
    "embedding": ((5, 4), True, False, 0),
    "head": ((5, 4), True, False, 0),
    "score": ((1, 4), True, False, 0),
    "norm/scale": ((4,), False, False, 0),
    "layers/query/kernel": ((2, 4, 4), True, True, 1),
    "layers/query/bias": ((2, 4), False, False, 1),
    "layers/query/lora_a": ((2, 4, 1), True, True, 1),
    "layers/query/lora_b": ((2, 1, 4), True, True, 1),
    "layers/query_norm/scale": ((2, 4), False, False, 1),
    "layers/experts/router": ((2, 4, 3), True, True, 1),
    "layers/experts/gate": ((2, 3, 4, 6), True, True, 2),
    "layers/experts/up": ((2, 3, 4, 6), True, True, 2),
    "layers/experts/down": ((2, 3, 6, 4), True, True, 2),
    "value/kernel": ((4,), False, False, 0),
    "value/bias": ((), False, False, 0),
}


def tree(column):
    nested = {}
    for path, row in LEAVES.items():
        *parents, name = path.split("/")
        node = nested
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = column(row)
    return nested


PARAMS = tree(lambda row: jnp.ones(row[0]))


def test_every_leaf_is_told_by_its_name():
    assert is_matrix(PARAMS) == tree(lambda row: row[1])
    assert is_inner_matrix(PARAMS) == tree(lambda row: row[2])
    assert stacked_axes(PARAMS) == tree(lambda row: row[3])


def test_every_parameter_of_the_decoder_is_told_apart(params):
    axes = stacked_axes(params)
    for path, matrix in jax.tree_util.tree_leaves_with_path(is_matrix(params)):
        stacked = path[0].key == "layers"
        leaf, leaf_axes = params, axes
        for entry in path:
            leaf, leaf_axes = leaf[entry.key], leaf_axes[entry.key]
        assert matrix == (leaf.ndim == 2 + stacked)
        assert leaf_axes == stacked


@pytest.mark.slow
@pytest.mark.mixed_dtypes
def test_a_transform_sees_one_block_at_a_time():
    """Each block is clipped to the norm 1, which gives 1 / sqrt(block size) everywhere."""
    transform = blockwise(optax.chain(optax.clip_by_global_norm(1.0), optax.trace(0.5)))
    state, update = transform.init(PARAMS), jax.jit(transform.update)
    for total in (1.0, 1.5):
        updates, state = update(jax.tree.map(lambda x: 3 * jnp.ones_like(x), PARAMS), state, PARAMS)
        expected = tree(
            lambda row, total=total: np.full(row[0], total / np.prod(row[0][row[3] :]) ** 0.5)
        )
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), updates, expected)


def test_the_parameters_are_asked_for():
    transform = blockwise(optax.identity())
    with pytest.raises(ValueError, match="needs the parameters"):
        transform.update(PARAMS, transform.init(PARAMS))


CONF = Path(__file__).resolve().parents[2] / "conf" / "optimizer"

NAMES = {AdamW8Bit: "adamw_8bit"} | {
    each: each.__name__.lower() for each in (Adafactor, AdamW, Lion, Muon, SGD)
}
OPTIMIZERS = list(NAMES)

PARAMS_OF_OPTIONS = {
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


def as_gradient(value, params=PARAMS_OF_OPTIONS):
    return jax.tree.map(lambda x: jnp.full(x.shape, value, x.dtype), params)


def first_update(optimizer, gradient):
    transform = optimizer.transform()
    return jax.jit(
        lambda g: transform.update(g, transform.init(PARAMS_OF_OPTIONS), PARAMS_OF_OPTIONS)
    )(gradient)


@pytest.mark.quick(1)
@pytest.mark.mixed_dtypes
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


@pytest.mark.quick(1)
@pytest.mark.mixed_dtypes
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


@pytest.mark.quick(1)
@pytest.mark.mixed_dtypes
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


@pytest.mark.slow
@pytest.mark.mixed_dtypes
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


@pytest.mark.mixed_dtypes
def test_an_end_of_the_learning_rate_needs_a_schedule():
    with pytest.raises(ValueError, match=r"final_fraction=0\.1 has no effect with schedule=const"):
        OptimizerOptions(learning_rate=1.0, final_fraction=0.1)
    OptimizerOptions(learning_rate=1.0, final_fraction=0.1, schedule="cosine")


@pytest.mark.mixed_dtypes
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


@pytest.mark.mixed_dtypes
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_yaml_has_the_defaults_of_the_class(optimizer):
    """Only the end of the schedule differs: it is the end of the run."""
    written = OmegaConf.load(CONF / f"{NAMES[optimizer]}.yaml")
    written = OmegaConf.merge({"optimizer": written}, {"steps": 7})
    assert instantiate(written.optimizer) == optimizer(total_steps=7)


@pytest.mark.mixed_dtypes
def test_the_defaults_change_nothing_but_the_length_of_a_gradient():
    options = OptimizerOptions(learning_rate=0.5)
    assert (options.schedule, options.warmup_steps, options.total_steps) == ("constant", 0, 1)
    assert (options.weight_decay, options.max_grad_norm) == (0.0, 1.0)
    np.testing.assert_array_equal([options.learning_rate_at(s) for s in (0, 1, 9)], 0.5)


@pytest.mark.mixed_dtypes
def test_the_gradient_is_clipped_before_the_direction_and_the_decay_is_not():
    """The norm 5 is clipped to 1 and doubled; half the parameter is added; the sum is negated."""
    options = OptimizerOptions(learning_rate=1.0, max_grad_norm=1.0, weight_decay=0.5)
    transform = options.descent(optax.scale(2.0))
    params = {"kernel": jnp.asarray([[10.0, -20.0]])}
    update, _ = transform.update(
        {"kernel": jnp.asarray([[3.0, 4.0]])}, transform.init(params), params
    )
    np.testing.assert_allclose(update["kernel"], [[-1.2 - 5, -1.6 + 10]], rtol=1e-6)


@pytest.mark.mixed_dtypes
def test_the_first_update_is_the_sign_of_the_gradient():
    """At the first step mu / sqrt(nu) is the sign, for any b1, b2 and learning rate."""
    transform = AdamW(learning_rate=7.0, max_grad_norm=0).transform()
    params = {"kernel": jnp.full((2, 2), 10.0), "bias": jnp.full(2, 10.0)}
    gradient = jax.tree.map(lambda x: jnp.full(x.shape, 0.3), params)
    for leaf in jax.tree.leaves(transform.update(gradient, transform.init(params), params)[0]):
        np.testing.assert_allclose(leaf, -1, rtol=1e-5)


@pytest.mark.mixed_dtypes
def test_two_updates_by_hand():
    transform = AdamW(b1=0.9, b2=0.99, epsilon=0.1, max_grad_norm=0).transform()
    params = {"kernel": jnp.asarray([1.0])}
    state = transform.init(params)
    _, state = transform.update({"kernel": jnp.asarray([2.0])}, state, params)
    update, _ = transform.update({"kernel": jnp.asarray([-1.0])}, state, params)
    mu = (0.9 * 0.1 * 2 + 0.1 * -1) / (1 - 0.9**2)
    nu = (0.99 * 0.01 * 4 + 0.01 * 1) / (1 - 0.99**2)
    np.testing.assert_allclose(update["kernel"], -mu / (np.sqrt(nu) + 0.1), rtol=1e-4)


@pytest.mark.mixed_dtypes
@pytest.mark.parametrize("parameter", ["float32", "bfloat16"])
def test_the_moment_dtype_is_of_the_first_moment_only(parameter):
    state = AdamW(moment_dtype="bfloat16", max_grad_norm=0).transform()
    adam = state.init({"kernel": jnp.ones((2, 2), parameter)})[0]
    assert (adam.mu["kernel"].dtype, adam.nu["kernel"].dtype) == (jnp.bfloat16, parameter)


@pytest.mark.mixed_dtypes
def test_the_decay_is_of_the_parameter_beside_the_direction():
    """The gradient 3 has the direction 1, and the parameter 5 decays by a tenth."""
    transform = AdamW(weight_decay=0.1, max_grad_norm=0).transform()
    params = {"kernel": jnp.full((1, 1), 5.0)}
    update, _ = transform.update({"kernel": jnp.full((1, 1), 3.0)}, transform.init(params), params)
    np.testing.assert_allclose(update["kernel"], [[-1.5]], rtol=1e-5)


@pytest.mark.mixed_dtypes
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # gradients 2 and -1; a parameter of 4 decays by 0.1 of itself
        ({"momentum": 0.0}, -(-1 + 0.4)),
        ({"momentum": 0.5}, -(0.5 * 2 - 1 + 0.4)),
        ({"momentum": 0.5, "nesterov": True}, -(-1 + 0.5 * (0.5 * 2 - 1) + 0.4)),
        ({"momentum": 0.25, "nesterov": True}, -(-1 + 0.25 * (0.25 * 2 - 1) + 0.4)),
    ],
    ids=str,
)
def test_two_updates_by_hand_of_sgd(options, expected):
    transform = SGD(max_grad_norm=0, weight_decay=0.1, **options).transform()
    params = {"kernel": jnp.full((1, 1), 4.0)}
    state = transform.init(params)
    _, state = transform.update({"kernel": jnp.full((1, 1), 2.0)}, state, params)
    update, _ = transform.update({"kernel": jnp.full((1, 1), -1.0)}, state, params)
    np.testing.assert_allclose(update["kernel"], [[expected]], rtol=1e-6)


@pytest.mark.mixed_dtypes
def test_without_momentum_there_is_no_state():
    assert not jax.tree.leaves(SGD(momentum=0.0).transform().init({"bias": jnp.ones(3)}))


@pytest.mark.mixed_dtypes
def test_the_moment_dtype_is_of_the_momentum():
    """The decay of the momentum has this dtype too: 0.9 is 0.8984375 in bfloat16."""
    transform = SGD(moment_dtype="bfloat16", max_grad_norm=0).transform()
    params = {"bias": jnp.ones(2)}
    _, state = transform.update(params, transform.init(params), params)
    update, state = transform.update(params, state, params)
    (trace,) = jax.tree.leaves(state)
    assert (update["bias"].dtype, trace.dtype) == (jnp.float32, jnp.bfloat16)
    np.testing.assert_allclose(update["bias"], -1.8984375, rtol=1e-6)
    np.testing.assert_array_equal(trace.astype(jnp.float32), 1.8984375)


@pytest.mark.mixed_dtypes
def test_two_updates_by_hand_of_lion():
    """After a gradient of 2, 0.9 x 0.5 x 2 + 0.1 g changes its sign at g = -9; mu uses b2 = 0.5."""
    transform = Lion(b1=0.9, b2=0.5, max_grad_norm=0, weight_decay=0.1).transform()
    params = {"kernel": jnp.full((1, 3), 4.0)}
    state = transform.init(params)
    first, state = transform.update({"kernel": jnp.asarray([[2.0, 2.0, 0.0]])}, state, params)
    np.testing.assert_allclose(first["kernel"], [[-1 - 0.4, -1 - 0.4, -0.4]], rtol=1e-6)
    second, state = transform.update({"kernel": jnp.asarray([[-8.9, -9.1, 0.0]])}, state, params)
    np.testing.assert_allclose(second["kernel"], [[-1 - 0.4, 1 - 0.4, -0.4]], rtol=1e-6)
    np.testing.assert_allclose(state[0].mu["kernel"], [[-3.95, -4.05, 0]], rtol=1e-6)


@pytest.mark.mixed_dtypes
def test_the_moment_dtype_is_of_the_moment():
    state = Lion(moment_dtype="bfloat16", max_grad_norm=0).transform()
    assert state.init({"bias": jnp.ones(2)})[0].mu["bias"].dtype == jnp.bfloat16


def first_update_of_muon(gradient, params=None, **options):
    transform = Muon(max_grad_norm=0, **options).transform()
    params = jax.tree.map(jnp.ones_like, gradient) if params is None else params
    return jax.jit(lambda g: transform.update(g, transform.init(params), params))(gradient)


def layers(x, name="kernel"):
    return {"layers": {"query": {name: jnp.asarray(x, jnp.float32)}}}


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def quintic(x):
    return 3.4445 * x - 4.7750 * x**3 + 2.0315 * x**5


@pytest.mark.mixed_dtypes
def test_a_step_by_hand():
    """diag(3, 4) / 5 has the singular values 0.6 and 0.8; each iteration maps them separately.

    The first iteration gives 1.1932 and 0.9766, the second 0.9114 and 0.7201. The scale is
    0.5 sqrt(2), and the parameter 1 decays by 0.1.
    """
    update, _ = first_update_of_muon(
        layers([np.diag([3.0, 4.0])]), iterations=2, update_rms=0.5, weight_decay=0.1
    )
    np.testing.assert_allclose([quintic(0.6), quintic(0.8)], [1.19324, 0.97646], atol=2e-4)
    expected = -(np.diag(quintic(quintic(np.asarray([0.6, 0.8])))) * 0.5 * 2**0.5 + 0.1)
    np.testing.assert_allclose(update["layers"]["query"]["kernel"], [expected], rtol=1e-4)


@pytest.mark.mixed_dtypes
@pytest.mark.parametrize("nesterov", [True, False])
def test_the_second_update_follows_the_momentum(nesterov):
    """The momentum is (0.5 x 0.5 g0 + 0.5 g1) / 0.75. Nesterov adds the gradient once more:

    0.5 (0.25 g0 + 0.5 g1) / 0.875 + 0.5 g1 / 0.75. Both are diagonal for diagonal gradients.
    """
    g0, g1 = np.diag([3.0, 1.0]), np.diag([-1.0, 2.0])
    transform = Muon(momentum=0.5, nesterov=nesterov, iterations=1, max_grad_norm=0).transform()
    params = layers([np.ones((2, 2))])
    _, state = transform.update(layers([g0]), transform.init(params), params)
    update, _ = transform.update(layers([g1]), state, params)
    moment = (0.25 * g0 + 0.5 * g1) / (0.875 if nesterov else 0.75)
    direction = 0.5 * moment + 0.5 * g1 / 0.75 if nesterov else moment
    expected = -0.2 * 2**0.5 * quintic(direction / np.linalg.norm(direction))
    np.testing.assert_allclose(update["layers"]["query"]["kernel"], [expected], atol=1e-5)


@pytest.mark.mixed_dtypes
@pytest.mark.parametrize("shape", [(24, 6, 4), (2, 4, 6), (2, 3, 6, 4)], ids=str)
def test_every_matrix_of_every_layer_and_expert_is_orthogonalised(shape):
    layer = np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    scale = 1e-3 ** (layer % 2)  # layers have gradients of different size
    tree = {"layers": {"experts": {"gate": jnp.float32(random(*shape) * scale)}}}
    update = first_update_of_muon(tree)[0]["layers"]["experts"]["gate"]
    values = np.linalg.svd(update / (0.2 * 6**0.5), compute_uv=False)
    assert values.min() > 0.6
    assert values.max() < 1.3


@pytest.mark.mixed_dtypes
def test_a_layer_does_not_touch_the_next():
    gradient = random(2, 4, 4)
    other = np.stack([gradient[0], random(4, 4, seed=1)])
    (a, _), (b, _) = first_update_of_muon(layers(gradient)), first_update_of_muon(layers(other))
    a, b = a["layers"]["query"]["kernel"], b["layers"]["query"]["kernel"]
    np.testing.assert_array_equal(a[0], b[0])
    assert not np.allclose(a[1], b[1], atol=1e-2)


@pytest.mark.mixed_dtypes
def test_a_layer_without_a_gradient_stays():
    """Adapters start in this state: B is 0, so A has no gradient."""
    update, _ = first_update_of_muon(layers(np.stack([np.zeros((4, 2)), random(4, 2)]), "lora_a"))
    np.testing.assert_array_equal(update["layers"]["query"]["lora_a"][0], np.zeros((4, 2)))
    assert np.isfinite(update["layers"]["query"]["lora_a"]).all()


@pytest.mark.slow
@pytest.mark.mixed_dtypes
def test_the_rest_is_as_by_adamw():
    gradient = {
        "embedding": random(3, 2),
        "head": random(3, 2),
        "norm": {"scale": random(2)},
        "layers": {"query": {"bias": random(2, 2), "kernel": random(2, 2, 2)}},
        "value": {"kernel": random(2), "bias": random()},
    }
    gradient = jax.tree.map(jnp.float32, gradient)
    params = jax.tree.map(lambda x: x + 1, gradient)
    options = {"b1": 0.8, "b2": 0.9, "epsilon": 0.1, "weight_decay": 0.1}
    update, _ = first_update_of_muon(gradient, params, **options)
    transform = AdamW(max_grad_norm=0, **options).transform()
    adamw, _ = transform.update(gradient, transform.init(params), params)
    assert not np.allclose(
        update["layers"]["query"].pop("kernel"), adamw["layers"]["query"].pop("kernel")
    )
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), update, adamw)


@pytest.mark.mixed_dtypes
def test_the_moment_dtype_is_of_both_first_moments():
    transform = Muon(moment_dtype="bfloat16", max_grad_norm=0).transform()
    params = layers(random(2, 4, 4)) | {"norm": {"scale": jnp.ones(2)}}
    states = transform.init(params)[0].inner_states
    adam = states["adamw"].inner_state
    assert states["muon"].inner_state[0].mu["layers"]["query"]["kernel"].dtype == jnp.bfloat16
    assert adam.mu["norm"]["scale"].dtype == jnp.bfloat16
    assert adam.nu["norm"]["scale"].dtype == jnp.float32


@pytest.mark.mixed_dtypes
def test_epsilon_is_added_to_the_norm():
    """The norm 5 plus the epsilon 5 gives singular values 0.3 and 0.4, then one iteration."""
    update, _ = first_update_of_muon(
        layers([np.diag([3.0, 4.0])]), iterations=1, nesterov=False, epsilon=5.0
    )
    expected = -0.2 * 2**0.5 * np.diag(quintic(np.asarray([0.3, 0.4])))
    np.testing.assert_allclose(update["layers"]["query"]["kernel"], [expected], rtol=1e-4)


@pytest.mark.mixed_dtypes
@pytest.mark.parametrize("shape", [(2, 5), (5, 2)], ids=str)
def test_the_scale_is_that_of_the_longer_side(shape):
    """A matrix with a single nonzero entry has the singular value 1 before the one iteration."""
    gradient = np.zeros(shape)
    gradient[1, 1] = -3.0
    update, _ = first_update_of_muon(layers([gradient]), iterations=1, update_rms=0.5)
    expected = np.where(gradient, 0.5 * 5**0.5 * quintic(1.0), 0)
    np.testing.assert_allclose(update["layers"]["query"]["kernel"], [expected], atol=1e-5)


def updates(gradients, params, **options):
    """Returns the last update and the state after it."""
    transform = Adafactor(max_grad_norm=0, **options).transform()
    state = transform.init(params)
    for gradient in gradients:
        update, state = jax.jit(transform.update)(gradient, state, params)
    return update, state


def direction(update, name="kernel"):
    return -np.asarray(update["layers"]["query"][name])


@pytest.mark.mixed_dtypes
def test_a_factored_step_by_hand():
    """g^2 = [1 4; 9 16] has the row means 2.5 and 12.5, column means 5 and 10, mean 7.5.

    nu = [2.5 x 5, 2.5 x 10; 12.5 x 5, 12.5 x 10] / 7.5 = [5/3, 10/3; 25/3, 50/3].
    """
    gradient = np.asarray([[1.0, -2.0], [3.0, 4.0]])
    update, _ = updates(
        [layers([gradient])],
        layers(np.full((1, 2, 2), 2.0)),
        min_factored_size=1,
        clip_rms=100.0,
        weight_decay=0.1,
    )
    u = gradient / np.sqrt(np.asarray([[5.0, 10.0], [25.0, 50.0]]) / 3)
    np.testing.assert_allclose(direction(update), [u * 2 + 0.2], rtol=1e-5)


@pytest.mark.mixed_dtypes
def test_two_steps_without_factors_by_hand():
    """Gradients 2 and 4 give nu = 4, then d 4 + (1 - d) 16 with d = 1 - 2^-0.5."""
    params = layers(np.full((1, 1, 1), 3.0))
    options = {"decay_exponent": 0.5, "clip_rms": 100.0}
    gradients = [layers([[[2.0]]]), layers([[[4.0]]])]
    d = 1 - 2**-0.5
    u = 4 / np.sqrt(4 * d + 16 * (1 - d))
    np.testing.assert_allclose(direction(updates(gradients, params, **options)[0]), u * 3, 1e-5)
    absolute, _ = updates(gradients, params, relative=False, **options)
    np.testing.assert_allclose(direction(absolute), u, 1e-5)
    averaged, _ = updates(gradients, params, relative=False, momentum=0.9, **options)
    np.testing.assert_allclose(direction(averaged), 0.9 * 0.1 * 1 + 0.1 * u, 1e-5)


@pytest.mark.mixed_dtypes
def test_the_direction_is_clipped_in_each_block():
    """One layer has the gradient 1, then 4: u = 4 / sqrt(d + 16 (1 - d)), clipped to 1."""
    params = layers(np.ones((2, 2, 2)))
    second = np.stack([np.ones((2, 2)), np.full((2, 2), 4.0)])
    update, _ = updates([layers(np.ones((2, 2, 2))), layers(second)], params)
    np.testing.assert_allclose(direction(update), np.ones((2, 2, 2)), rtol=1e-5)


@pytest.mark.quick(1)
@pytest.mark.mixed_dtypes
@pytest.mark.parametrize("size", [1, 128], ids=["factored", "whole"])
@pytest.mark.parametrize(
    ("shape", "name"),
    # more layers than rows, experts, and vectors
    [((5, 2, 3), "kernel"), ((2, 4, 2, 3), "gate"), ((2, 3), "bias")],
    ids=str,
)
def test_a_block_is_as_if_it_were_alone(shape, name, size):
    random = np.random.default_rng(0)
    axes = 1 if name != "gate" else 2
    blocks = random.lognormal(0, 2, (2, *shape[:axes], *[1] * (len(shape) - axes)))
    gradient, param = (scale * random.normal(size=shape) for scale in blocks)
    update, _ = updates([layers(gradient, name)] * 2, layers(param, name), min_factored_size=size)
    for index in np.ndindex(*shape[:axes]):
        keep = tuple(slice(i, i + 1) for i in index)
        alone, _ = updates(
            [layers(gradient[keep], name)] * 2, layers(param[keep], name), min_factored_size=size
        )
        np.testing.assert_allclose(
            direction(update, name)[keep], direction(alone, name), rtol=1e-4, atol=1e-6
        )


@pytest.mark.mixed_dtypes
def test_a_factored_moment_is_a_row_and_a_column_of_each_matrix():
    state = (
        Adafactor(min_factored_size=8, max_grad_norm=0)
        .transform()
        .init(layers(np.ones((3, 8, 16))))
    )
    sizes = sorted(leaf.shape for leaf in jax.tree.leaves(state))
    assert sizes == [(3,), (3, 1), (3, 8), (3, 16)]


@pytest.mark.mixed_dtypes
def test_the_moment_dtype_is_of_the_momentum_of_adafactor():
    params = layers(np.ones((1, 2, 2)))
    _, state = updates([params], params, momentum=0.9, moment_dtype="bfloat16")
    assert sorted(str(leaf.dtype) for leaf in jax.tree.leaves(state)).count("bfloat16") == 1


@pytest.mark.mixed_dtypes
def test_a_parameter_of_zero_moves_as_one_of_a_thousandth():
    """The first direction is the sign of the gradient, and 0 for a gradient of 0."""
    gradient = [[[2.0, -4.0], [0.0, 8.0]]]
    update, _ = updates([layers(gradient)], layers(np.zeros((1, 2, 2))), clip_rms=100.0)
    np.testing.assert_allclose(direction(update), 1e-3 * np.sign(gradient), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.mixed_dtypes
def test_a_direction_is_scaled_down_to_the_limit_of_its_root_mean_square():
    """A direction of signs has the root mean square 1."""
    params = layers(np.full((1, 2, 2), 2.0))
    update, _ = updates([params], params, clip_rms=0.25)
    np.testing.assert_allclose(direction(update), np.full((1, 2, 2), 0.5), rtol=1e-5)
