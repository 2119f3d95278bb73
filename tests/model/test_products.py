import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.model.products import Projection, product
from tests.support.equations import equations


def test_a_product_and_its_own_derivative_are_those_of_jax():
    random = np.random.default_rng(0)
    x_BTD, kernel_DF, weights_BTF = (
        jnp.asarray(random.normal(size=shape), jnp.float32)
        for shape in ((2, 5, 3), (3, 4), (2, 5, 4))
    )

    def of(multiply):
        def loss(x_BTD, kernel_DF):
            return jnp.sum(weights_BTF * jnp.sin(multiply(x_BTD, kernel_DF)))

        return jax.value_and_grad(loss, argnums=(0, 1))(x_BTD, kernel_DF)

    ours, expected = of(product), of(lambda x, kernel: jnp.einsum("BTD,DF->BTF", x, kernel))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), ours, expected
    )


@pytest.mark.parametrize("sums", ["float32", None])
def test_a_product_of_bfloat16_and_its_derivative_are_rounded_once(sums):
    random = np.random.default_rng(0)
    x_BTD, kernel_DF, dy_BTF = (
        jnp.asarray(random.normal(size=shape), jnp.bfloat16)
        for shape in ((2, 50, 300), (300, 40), (2, 50, 40))
    )

    def run(x_BTD, kernel_DF, dy_BTF):
        y_BTF, back = jax.vjp(lambda x, kernel: product(x, kernel, sums), x_BTD, kernel_DF)
        return y_BTF, *back(dy_BTF)

    program = jax.make_jaxpr(run)(x_BTD, kernel_DF, dy_BTF)
    products = [x for _, x in equations(program.jaxpr) if x.primitive.name == "dot_general"]
    kinds = {x.outvars[0].aval.dtype.name for x in products}
    assert (len(products), kinds) == (3, {sums or "bfloat16"})
    wide = [np.asarray(x, np.float64) for x in (x_BTD, kernel_DF, dy_BTF)]
    exact = (
        wide[0] @ wide[1],
        wide[2] @ wide[1].T,
        np.einsum("BTD,BTF->DF", wide[0], wide[2]),
    )
    for ours, expected in zip(run(x_BTD, kernel_DF, dy_BTF), exact, strict=True):
        assert ours.dtype == jnp.bfloat16
        if sums is not None:  # half a unit in the last of 8 bits, and the error of the sum
            error = np.abs(np.asarray(ours, np.float64) - expected)
            assert (error <= 2.0**-8 * np.abs(expected) + 1e-4).all()


def test_a_projection_multiplies_and_adds_its_bias():
    x = np.float32([[1, 2]])
    params = {"kernel": np.float32([[1, 0, 3], [0, 1, -1]]), "bias": np.float32([10, 20, 30])}
    for bias, expected in ((True, [11, 22, 31]), (False, [1, 2, 1])):
        projection = Projection(3, use_bias=bias, dtype=jnp.float32, parent=None)
        np.testing.assert_array_equal(projection.apply({"params": params}, x)[0], expected)
