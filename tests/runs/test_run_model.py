"""Tests a run that begins with the weights of another run."""

import jax
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.base.storage import ObjectStore
from rl4p.configuration import compose
from rl4p.distributed.mesh import Mesh
from rl4p.runs.build import build
from rl4p.runs.checkpoint import Orbax
from rl4p.runs.folder import save_config
from rl4p.runs.record import Record
from rl4p.runs.run_model import RunModel
from tests.runs.test_policy import SMALL, assert_equal

METRIC = "eval/arithmetic/pass_at_1"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Returns the folder of a run with checkpoints of steps 3 and 7, and their parameters."""
    folder = tmp_path_factory.mktemp("parent")
    config = compose([*SMALL, f"checkpoint.best={METRIC}"])
    save_config(config, "config.yaml", folder / ".hydra")
    experiment, params = build(config), {}
    with Orbax().open(folder, experiment.loop.stateful) as checkpoints:
        for step, value in ((3, 0.8), (7, 0.2)):
            state = experiment.state
            changed = jax.tree.map(lambda x, step=step: x + step, state.params)
            fields = {"step": np.int32(step), "params": changed, "average": state.params}
            checkpoints.save(type(state)(**(vars(state) | fields)))
            Record(folder).log(step, {METRIC: value})
            params[step] = changed
    return folder, params, experiment.state.params


@pytest.mark.parametrize(
    ("place", "checkpoint", "step"),
    [("", "newest", 7), ("", "best", 3), ("", 3, 3), ("checkpoints/3", "newest", 3)],
)
def test_a_model_has_the_weights_of_a_checkpoint_and_records_its_step(
    saved, place, checkpoint, step
):
    folder, params, _ = saved
    model = RunModel(run=str(folder / place), checkpoint=checkpoint)
    policy, own = model.build(Mesh(dp=1), jax.random.key(5))
    assert policy.decoder.config.width == 32
    assert_equal(own, params[step])
    assert model.recorded() == {"run": str(folder), "checkpoint": step}
    assert_equal(RunModel(**model.recorded()).build(Mesh(dp=1), jax.random.key(5))[1], own)
    abstract, shapes = model.abstract(Mesh(dp=1))
    assert abstract.decoder == policy.decoder
    assert jax.tree.map(lambda x: x.shape, shapes) == jax.tree.map(lambda x: x.shape, own)


@pytest.mark.parametrize(("place", "step"), [("", 7), ("/checkpoints/3", 3)])
def test_the_run_may_be_in_an_object_store(saved, url, place, step):
    folder, params, _ = saved
    files = [path for path in folder.rglob("*") if path.is_file()]
    ObjectStore(url).upload([path.relative_to(folder).as_posix() for path in files], folder)
    model = RunModel(run=url + place)
    assert model.recorded() == {"run": url, "checkpoint": step}
    assert_equal(model.build(Mesh(dp=1), jax.random.key(5))[1], params[step])


def test_a_new_run_begins_with_these_weights_and_its_own_optimizer(saved):
    folder, params, _ = saved
    words = [x for x in SMALL if not x.startswith("model")]
    experiment = build(compose([*words, "model=run", f"model.run={folder}", "model.checkpoint=3"]))
    assert_equal(experiment.state.params, params[3])
    assert experiment.recorded == {"model.run": str(folder), "model.checkpoint": "3"}
    assert int(experiment.state.step) == 0


def test_the_average_may_be_taken(saved):
    folder, _, initial = saved
    model = RunModel(run=str(folder), average=True)
    assert_equal(model.build(Mesh(dp=1), jax.random.key(5))[1], initial)


def test_another_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="is not the folder of a run"):
        RunModel(run=str(tmp_path)).build(Mesh(dp=1), jax.random.key(0))


def test_a_reference_has_its_own_model_and_options_that_cannot_act_are_refused(saved):
    folder, params, initial = saved
    own = ("+model@reference.model=run", f"reference.model.run={folder}")
    experiment = build(compose([*SMALL, "kl=fixed", *own]))
    assert_equal(experiment.loop.scoring.reference[1], params[7])
    assert experiment.state.reference == {}
    reset = build(compose([*SMALL, "kl=fixed", *own, "reference.reset_every=10"]))
    assert_equal(reset.state.reference, params[7])
    assert reset.loop.reset_reference_every == 10
    plain = build(compose([*SMALL, "kl=fixed", "reference.reset_every=10"]))
    assert_equal(plain.state.reference, initial)
    for words, sentence in (
        (own, "reference.model has no effect, because no phase compares"),
        (("reference.reset_every=3",), "reference.reset_every=3 has no effect, because"),
        (("kl=fixed", "reference.reset_every=80"), "never resets the reference of a run of steps"),
    ):
        with pytest.raises(InputError, match=sentence):
            build(compose([*SMALL, *words]))
