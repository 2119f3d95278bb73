"""Tests of the critics, of their loss and of the YAML of their group."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from rl4p.learner.critic import NONE, CriticOptions, Separate, Shared
from rl4p.learner.logprobs import trunk

CONF = Path(__file__).resolve().parents[2] / "conf" / "critic"


@pytest.fixture(scope="session")
def rows(make_trajectories):
    return make_trajectories((2, 3), (3, 1), width=4, limit=4)


@pytest.fixture(scope="session")
def read(policy, params, rows):
    """Returns a function that computes a critic's values and the policy's trunk."""

    def read(critic, of_critic, of_policy=params):
        hidden_BTD = trunk(policy.decoder, of_policy, rows)
        parameters = of_policy | {"critic": of_critic}
        return critic.values(policy.decoder, parameters, hidden_BTD, rows), hidden_BTD

    return jax.jit(read, static_argnums=0)


@pytest.fixture(scope="session")
def with_head():
    """Returns a function that replaces a critic's head with one that is not 0."""

    def with_head(critic_params):
        kernel = np.random.default_rng(0).normal(size=32).astype(np.float32)
        head = {"kernel": jnp.asarray(kernel), "bias": jnp.float32(0.5)}
        return critic_params | {"value": head}

    return with_head


@pytest.mark.parametrize(
    ("clip", "value", "target", "loss", "slope"),
    [
        # the old value is 1
        (0.5, 1.25, 2.0, 0.28125, -0.75),
        (0.5, 1.75, 2.0, 0.125, 0.0),  # moved too far toward its target: 1.5 counts
        (0.5, 0.0, 2.0, 2.0, -2.0),  # moved away from it: the unclipped square counts
        (0.5, 1.75, 0.0, 1.53125, 1.75),
        (None, 1.75, 2.0, 0.03125, -0.25),
    ],
)
def test_a_value_moves_so_far_and_no_farther(clip, value, target, loss, slope):
    critic = CriticOptions(coefficient=1.0, clip=clip)
    run = jax.value_and_grad(lambda x: critic.loss(x, jnp.float32(1), jnp.float32(target)))
    np.testing.assert_allclose(run(jnp.float32(value)), (loss, slope), rtol=1e-6)


def test_half_the_square_is_weighed_by_the_coefficient():
    """The loss is 0.25 / 2 x 3^2 on both sides; without a clip the old value does not matter."""
    critic = CriticOptions(coefficient=0.25, clip=None)
    run = jax.value_and_grad(lambda x: critic.loss(x, jnp.float32(9), jnp.float32(2)))
    np.testing.assert_allclose(run(jnp.float32(5)), (1.125, 0.75))
    np.testing.assert_allclose(run(jnp.float32(-1)), (1.125, -0.75))


@pytest.mark.parametrize("name", ["none", "shared", "separate"])
def test_the_yaml_has_the_defaults_of_the_class(name):
    critic = instantiate(OmegaConf.load(CONF / f"{name}.yaml"))
    assert critic == type(critic)()


def test_there_is_no_critic():
    assert not NONE.active
    assert not NONE.own_trunk
    assert not hasattr(NONE(), "init")
    assert not hasattr(NONE(), "loss")


def test_a_head_is_all_that_is_new_and_every_estimate_starts_at_zero(policy, params, read):
    critic = Shared()
    assert critic.active
    assert not critic.own_trunk
    begun = critic.init(policy.decoder, params)
    assert jax.tree.map(jnp.shape, begun) == {"value": {"kernel": (32,), "bias": ()}}
    np.testing.assert_array_equal(read(critic, begun)[0], 0)


def test_a_value_is_read_from_the_activations_of_the_token_before(policy, params, read, with_head):
    of_critic = with_head(Shared().init(policy.decoder, params))
    values_BT, hidden_BTD = jax.device_get(read(Shared(), of_critic))
    expected = hidden_BTD[:, :-1] @ np.asarray(of_critic["value"]["kernel"]) + 0.5
    assert values_BT.dtype == np.float32
    np.testing.assert_allclose(values_BT[:, 1:], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(values_BT[:, 0], 0)


@pytest.mark.quick(1)
@pytest.mark.parametrize("detach", [False, True])
def test_its_loss_trains_the_trunk_unless_it_is_detached(policy, params, read, with_head, detach):
    critic = Shared(detach=detach)
    of_critic = with_head(critic.init(policy.decoder, params))

    def total(of_critic, of_policy):
        return jnp.sum(jnp.square(read(critic, of_critic, of_policy)[0]))

    head, trunk = jax.grad(total, argnums=(0, 1))(of_critic, params)
    assert all(x.any() for x in jax.tree.leaves(head))
    assert trunk["layers"]["query"]["kernel"].any() == (not detach)
    assert any(x.any() for x in jax.tree.leaves(trunk)) == (not detach)


@pytest.mark.slow
def test_it_begins_as_a_copy_of_the_policys_trunk(policy, params, read):
    """The arrays must be distinct, because an update donates each of them once."""
    critic = Separate()
    assert critic.active
    assert critic.own_trunk
    begun = critic.init(policy.decoder, params)
    assert begun.keys() == {"embedding", "layers", "norm", "value"}
    for name in ("embedding", "layers", "norm"):
        jax.tree.map(np.testing.assert_array_equal, begun[name], params[name])
        pairs = zip(jax.tree.leaves(begun[name]), jax.tree.leaves(params[name]), strict=True)
        assert not any(ours is theirs for ours, theirs in pairs)
    np.testing.assert_array_equal(read(critic, begun)[0], 0)


def test_while_the_trunks_are_the_same_it_reads_what_a_shared_critic_reads(
    policy, params, read, with_head
):
    of_critic = with_head(Separate().init(policy.decoder, params))
    separate, shared = (read(critic, of_critic)[0] for critic in (Separate(), Shared()))
    assert np.abs(separate).max() > 0.1
    np.testing.assert_allclose(separate, shared, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_neither_disturbs_the_other(policy, params, read, with_head):
    """The value has a zero gradient for the policy's parameters, and a gradient for its own."""
    of_critic = with_head(Separate().init(policy.decoder, params))

    def total(of_critic, of_policy):
        return jnp.sum(jnp.square(read(Separate(), of_critic, of_policy)[0]))

    ours, policys = jax.grad(total, argnums=(0, 1))(of_critic, params)
    assert not any(x.any() for x in jax.tree.leaves(policys))
    assert all(x.any() for x in jax.tree.leaves(ours["value"]))
    assert ours["layers"]["query"]["kernel"].any()
    assert ours["embedding"].any()
