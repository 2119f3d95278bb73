import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.learner.optimizer.adamw import AdamW
from rl4p.learner.optimizer.muon import Muon

pytestmark = pytest.mark.mixed_dtypes


def first_update(gradient, params=None, **options):
    transform = Muon(max_grad_norm=0, **options).transform()
    params = jax.tree.map(jnp.ones_like, gradient) if params is None else params
    return jax.jit(lambda g: transform.update(g, transform.init(params), params))(gradient)


def layers(x, name="kernel"):
    return {"layers": {"query": {name: jnp.asarray(x, jnp.float32)}}}


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def quintic(x):
    return 3.4445 * x - 4.7750 * x**3 + 2.0315 * x**5


def test_a_step_by_hand():
    """diag(3, 4) / 5 has the singular values 0.6 and 0.8; each iteration maps them separately.

    The first iteration gives 1.1932 and 0.9766, the second 0.9114 and 0.7201. The scale is
    0.5 sqrt(2), and the parameter 1 decays by 0.1.
    """
    update, _ = first_update(
        layers([np.diag([3.0, 4.0])]), iterations=2, update_rms=0.5, weight_decay=0.1
    )
    np.testing.assert_allclose([quintic(0.6), quintic(0.8)], [1.19324, 0.97646], atol=2e-4)
    expected = -(np.diag(quintic(quintic(np.asarray([0.6, 0.8])))) * 0.5 * 2**0.5 + 0.1)
    np.testing.assert_allclose(update["layers"]["query"]["kernel"], [expected], rtol=1e-4)


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


@pytest.mark.parametrize("shape", [(24, 6, 4), (2, 4, 6), (2, 3, 6, 4)], ids=str)
def test_every_matrix_of_every_layer_and_expert_is_orthogonalised(shape):
    layer = np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    scale = 1e-3 ** (layer % 2)  # layers have gradients of different size
    tree = {"layers": {"experts": {"gate": jnp.float32(random(*shape) * scale)}}}
    update = first_update(tree)[0]["layers"]["experts"]["gate"]
    values = np.linalg.svd(update / (0.2 * 6**0.5), compute_uv=False)
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_a_layer_does_not_touch_the_next():
    gradient = random(2, 4, 4)
    other = np.stack([gradient[0], random(4, 4, seed=1)])
    (a, _), (b, _) = first_update(layers(gradient)), first_update(layers(other))
    a, b = a["layers"]["query"]["kernel"], b["layers"]["query"]["kernel"]
    np.testing.assert_array_equal(a[0], b[0])
    assert not np.allclose(a[1], b[1], atol=1e-2)


def test_a_layer_without_a_gradient_stays():
    """Adapters start in this state: B is 0, so A has no gradient."""
    update, _ = first_update(layers(np.stack([np.zeros((4, 2)), random(4, 2)]), "lora_a"))
    np.testing.assert_array_equal(update["layers"]["query"]["lora_a"][0], np.zeros((4, 2)))
    assert np.isfinite(update["layers"]["query"]["lora_a"]).all()


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
    update, _ = first_update(gradient, params, **options)
    transform = AdamW(max_grad_norm=0, **options).transform()
    adamw, _ = transform.update(gradient, transform.init(params), params)
    assert not np.allclose(
        update["layers"]["query"].pop("kernel"), adamw["layers"]["query"].pop("kernel")
    )
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), update, adamw)


def test_the_moment_dtype_is_of_both_first_moments():
    transform = Muon(moment_dtype="bfloat16", max_grad_norm=0).transform()
    params = layers(random(2, 4, 4)) | {"norm": {"scale": jnp.ones(2)}}
    states = transform.init(params)[0].inner_states
    adam = states["adamw"].inner_state
    assert states["muon"].inner_state[0].mu["layers"]["query"]["kernel"].dtype == jnp.bfloat16
    assert adam.mu["norm"]["scale"].dtype == jnp.bfloat16
    assert adam.nu["norm"]["scale"].dtype == jnp.float32


def test_epsilon_is_added_to_the_norm():
    """The norm 5 plus the epsilon 5 gives singular values 0.3 and 0.4, then one iteration."""
    update, _ = first_update(
        layers([np.diag([3.0, 4.0])]), iterations=1, nesterov=False, epsilon=5.0
    )
    expected = -0.2 * 2**0.5 * np.diag(quintic(np.asarray([0.3, 0.4])))
    np.testing.assert_allclose(update["layers"]["query"]["kernel"], [expected], rtol=1e-4)


@pytest.mark.parametrize("shape", [(2, 5), (5, 2)], ids=str)
def test_the_scale_is_that_of_the_longer_side(shape):
    """A matrix with a single nonzero entry has the singular value 1 before the one iteration."""
    gradient = np.zeros(shape)
    gradient[1, 1] = -3.0
    update, _ = first_update(layers([gradient]), iterations=1, update_rms=0.5)
    expected = np.where(gradient, 0.5 * 5**0.5 * quintic(1.0), 0)
    np.testing.assert_allclose(update["layers"]["query"]["kernel"], [expected], atol=1e-5)
