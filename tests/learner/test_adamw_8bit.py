import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.learner.adamw_8bit import (
    FIRST_MOMENT,
    SECOND_MOMENT,
    AdamW8Bit,
    decoded,
    encoded,
    uniform,
    unpacked,
)
from rl4p.learner.optimizer import AdamW

pytestmark = [pytest.mark.mixed_dtypes, pytest.mark.usefixtures("toys")]
OPTIONS = {"b1": 0.9, "b2": 0.99, "epsilon": 1e-8, "max_grad_norm": 0}
WIDE = {"kernel": jnp.ones((3, 512))}


def means_through_codes(x, code, counts):
    """Returns the mean over counts of what is read of an array that is written once a count."""
    one = jax.jit(lambda count: decoded(*encoded(x, code, count), code))
    return np.mean([one(jnp.int32(count)) for count in range(counts)], axis=0)


def gradients(count, params=WIDE, seed=0):
    """Returns gradients whose numbers are of different sizes, as those of a network are."""
    random = np.random.default_rng(seed)
    sizes = jax.tree.map(lambda x: np.exp(random.normal(size=x.shape)), params)
    mean = jax.tree.map(lambda size: 0.3 * size, sizes)
    return [
        jax.tree.map(
            lambda size, mean: jnp.float32(mean + size * random.normal(size=size.shape)),
            sizes,
            mean,
        )
        for _ in range(count)
    ]


def updates(optimizer, gradients, params=WIDE):
    """Returns the update of each gradient, and the last state."""
    transform = optimizer.transform()
    state, update = jax.jit(transform.init)(params), jax.jit(transform.update)
    results = []
    for gradient in gradients:
        result, state = update(gradient, state, params)
        results.append(result)
    return results, state


@pytest.mark.parametrize(
    ("code", "numbers"),
    [
        (FIRST_MOMENT, [-1.0, -((100 / 127) ** 2), 0.0, (1 / 127) ** 2, 0.25 * (126 / 127) ** 2]),
        (SECOND_MOMENT, [1.0, (254 / 255) ** 4, 0.0, (1 / 255) ** 4, (5 / 255) ** 4]),
    ],
    ids=["first", "second"],
)
def test_the_numbers_of_codes_are_kept(code, numbers):
    x = 3.0 * jnp.resize(jnp.asarray(numbers), (2, 320))
    codes, scales = encoded(x, code, jnp.int32(7))
    assert (codes.shape, codes.dtype, scales.shape) == (x.shape, code.dtype, (2, 2))  # of 160
    np.testing.assert_allclose(scales, 3.0)
    np.testing.assert_allclose(decoded(codes, scales, code), x, rtol=1e-5)


@pytest.mark.parametrize("code", [FIRST_MOMENT, SECOND_MOMENT], ids=["first", "second"])
def test_what_lies_between_two_codes_is_right_in_the_mean(code):
    """Over 500 updates the mean is within a hundredth of the distance of two codes."""
    random = np.random.default_rng(0)
    x = jnp.float32(np.exp(random.uniform(-6, 0, size=(2, 256))))
    if code is FIRST_MOMENT:
        x *= jnp.sign(random.normal(size=x.shape))
    one = decoded(*encoded(x, code, jnp.int32(0)), code)
    scale = jnp.max(jnp.abs(x), axis=-1, keepdims=True)
    share = jnp.abs(x) / scale
    distance = scale * code.power * share ** (1 - 1 / code.power) / code.largest
    assert np.max(np.abs(one - x) / distance) > 0.5
    assert np.max(np.abs(means_through_codes(x, code, 500) - x) / distance) < 0.02


def test_a_second_moment_is_never_rounded_to_zero():
    x = jnp.resize(jnp.asarray([1.0, 1e-12, 1e-30, 0.0]), (1, 64))
    for count in range(50):
        read = decoded(*encoded(x, SECOND_MOMENT, jnp.int32(count)), SECOND_MOMENT)
        np.testing.assert_array_equal(read > 0, x > 0)


def test_blocks_have_scales_of_their_own():
    """Numbers a billion times smaller than those of the next block keep their precision."""
    x = jnp.concatenate([jnp.full((1, 256), 1e3), jnp.full((1, 256), 1e-6)], axis=1)
    read = decoded(*encoded(x, FIRST_MOMENT, jnp.int32(0)), FIRST_MOMENT)
    np.testing.assert_allclose(read, x, rtol=1e-6)


def test_the_moments_of_matrices_have_8_bits_and_those_of_vectors_32():
    params = {
        "kernel": jnp.ones((2, 4, 576)),  # blocks of 192
        "gate": jnp.ones((4, 16)),  # too short
        "up": jnp.ones((4, 257)),  # a prime
        "bias": jnp.ones((2, 576)),
    }
    _, state = updates(AdamW8Bit(**OPTIONS), gradients(1, params), params)
    mu, nu = state[0].mu, state[0].nu
    dtypes = [{name: x.dtype.name for name, x in moment.codes.items()} for moment in (mu, nu)]
    rest = {"gate": "float32", "up": "float32", "bias": "float32"}
    assert dtypes == [{"kernel": "int8", **rest}, {"kernel": "uint8", **rest}]
    assert {x.shape for x in jax.tree.leaves((mu.scales, nu.scales))} == {(2, 4, 3)}
    held = sum(x.nbytes for x in jax.tree.leaves([(m.codes["kernel"], m.scales) for m in (mu, nu)]))
    assert held <= 2.05 * params["kernel"].size


def test_small_matrices_and_vectors_move_as_with_adamw():
    params = {"kernel": jnp.ones((4, 16)), "bias": jnp.ones(64)}
    steps = gradients(5, params)
    (one, _), (other, _) = (updates(x(**OPTIONS), steps, params) for x in (AdamW, AdamW8Bit))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), one, other)


def test_updates_are_close_to_those_of_adamw():
    steps = gradients(300)
    (one, _), (other, _) = (updates(x(**OPTIONS), steps) for x in (AdamW, AdamW8Bit))
    for a, b in list(zip(one, other, strict=True))[50:]:
        a, b = a["kernel"], b["kernel"]
        assert np.linalg.norm(a - b) < 0.15 * np.linalg.norm(a)
    moved, again = (sum(x["kernel"] for x in each) for each in (one, other))
    assert np.linalg.norm(moved - again) < 0.05 * np.linalg.norm(moved)


def test_a_second_moment_falls_by_less_than_the_distance_of_two_codes():
    """One number has no gradient for 700 updates, while its block keeps its largest number."""
    params = {"kernel": jnp.ones((1, 64))}
    one = jnp.ones((1, 64))
    steps = [{"kernel": one}] * 3 + [{"kernel": one.at[0, ::2].set(0)}] * 700
    _, state = updates(AdamW8Bit(**OPTIONS | {"b2": 0.999}), steps, params)
    nu = unpacked(state[0]).nu["kernel"]
    expected = (1 - 0.999**3) * 0.999**700
    assert np.mean(nu[0, ::2]) == pytest.approx(expected, rel=0.1)
    assert np.mean(nu[0, 1::2]) == pytest.approx(1 - 0.999**703, rel=0.02)


def test_a_matrix_without_a_gradient_stays():
    (update,), state = updates(AdamW8Bit(**OPTIONS), [{"kernel": jnp.zeros((3, 512))}])
    np.testing.assert_array_equal(update["kernel"], 0)
    assert not any(np.any(x) for x in jax.tree.leaves((state[0].mu, state[0].nu)))


def test_positions_and_counts_have_different_numbers():
    x = np.asarray(uniform((64, 512), jnp.int32(3)))
    assert 0 <= x.min() < 1e-3
    assert 0.999 < x.max() < 1
    counts, _ = np.histogram(x, 16, (0, 1))
    assert counts.min() > 0.9 * x.size / 16
    for axis in (0, 1):  # neighbours are independent
        pairs = np.moveaxis(x, axis, 0)
        assert abs(np.corrcoef(pairs[1:].ravel(), pairs[:-1].ravel())[0, 1]) < 0.03
    of_one = np.asarray([uniform((1, 4), jnp.int32(count))[0, 2] for count in range(100)])
    assert np.max(np.diff(np.sort(of_one))) < 0.03
