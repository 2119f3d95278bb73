import jax
import numpy as np
import pytest
from omegaconf import OmegaConf

from rl4p.base.errors import InputError
from rl4p.configuration import compose
from rl4p.rollout.continuous import Continuous
from rl4p.runs.build import build
from rl4p.runs.checkpoint import Orbax
from rl4p.runs.policy import load_policy, run_sampler

SMALL = (
    "model=scratch", "model.width=32", "model.layers=1", "model.heads=2", "data.train_size=20",
    "data.held_out_size=4", "prompts_per_step=4", "group_size=2", "ema.decay=0.5",
)  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Returns the configuration, the folder of a run with steps 3 and 7, and their parameters."""
    folder, config = tmp_path_factory.mktemp("run"), compose(SMALL)
    experiment = build(config)
    params = {}
    with Orbax().open(folder, experiment.loop.stateful) as checkpoints:
        for step in (3, 7):
            state = experiment.state
            changed = jax.tree.map(lambda x, step=step: x + step, state.params)
            fields = {"step": np.int32(step), "params": changed, "average": state.params}
            checkpoints.save(type(state)(**(vars(state) | fields)))
            params[step] = changed
    return config, folder, params, experiment.state.params


def assert_equal(found, wanted):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


def test_the_policy_of_a_run(saved):
    config, folder, params, initial = saved  # the average, too, is the initial parameters
    policy, newest, step = load_policy(config, folder)
    assert step == 7
    assert_equal(newest, params[7])
    assert policy.decoder.config.width == 32
    assert_equal(load_policy(config, folder, step=3)[1], params[3])
    assert_equal(load_policy(config, folder, average=True)[1], initial)
    _, without_run, step = load_policy(config, None)
    assert step is None
    assert_equal(without_run, initial)
    absent = "has no checkpoint of step 5; it has checkpoints of steps 3, 7"
    with pytest.raises(InputError, match=absent):
        load_policy(config, folder, step=5)


def test_the_sampler_of_a_supervised_run_is_that_of_its_evaluation():
    assert run_sampler(compose(["rollout.top_k=3"])).top_k == 3
    found = run_sampler(compose(["experiment=arithmetic_sft", "evaluation.rollout.top_k=5"]))
    assert isinstance(found, Continuous)
    assert found.top_k == 5
    config = compose(["experiment=arithmetic_sft"])
    OmegaConf.update(config, "evaluation.rollout", None)
    with pytest.raises(InputError, match="does not sample with an engine: choose rollout=contin"):
        run_sampler(config)
