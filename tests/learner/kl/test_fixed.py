import jax.numpy as jnp
import pytest

from rl4p.learner.kl.fixed import Fixed


def test_the_coefficient_stays():
    kl = Fixed(beta=0.02)
    assert not hasattr(kl, "initial_state")
    assert kl.coefficient({}) == jnp.float32(0.02)


@pytest.mark.parametrize(("beta", "needs"), [(0.0, set()), (0.1, {"reference_logprobs"})])
def test_with_nothing_to_weigh_there_is_no_reference(beta, needs):
    assert Fixed(beta=beta).active == bool(needs)
    assert Fixed(beta=beta).needs == needs
