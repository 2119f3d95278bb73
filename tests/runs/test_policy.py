"""Tests the policies of a run and of another run, the reference and the teacher."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from omegaconf import OmegaConf

from rl4p.base.errors import InputError
from rl4p.base.storage import ObjectStore
from rl4p.configuration import compose
from rl4p.distributed.mesh import Mesh
from rl4p.model.exact_sums import OTHER_DIGITS
from rl4p.model.huggingface import write_policy
from rl4p.model.pretrained import Pretrained
from rl4p.rollout.continuous import Continuous
from rl4p.runs.build import build
from rl4p.runs.checkpoint import Orbax
from rl4p.runs.folder import save_config
from rl4p.runs.policy import RunModel, load_policy, run_sampler
from rl4p.runs.record import Record

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


@pytest.mark.slow
def test_the_sampler_of_a_supervised_run_is_that_of_its_evaluation():
    assert run_sampler(compose(["rollout.top_k=3"])).top_k == 3
    found = run_sampler(compose(["experiment=arithmetic_sft", "evaluation.rollout.top_k=5"]))
    assert isinstance(found, Continuous)
    assert found.top_k == 5
    config = compose(["experiment=arithmetic_sft"])
    OmegaConf.update(config, "evaluation.rollout", None)
    with pytest.raises(InputError, match="does not sample with an engine: choose rollout=contin"):
        run_sampler(config)


METRIC = "eval/arithmetic/pass_at_1"


@pytest.fixture(scope="module")
def saved_run_model(tmp_path_factory):
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


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("place", "checkpoint", "step"),
    [("", "newest", 7), ("", "best", 3), ("", 3, 3), ("checkpoints/3", "newest", 3)],
)
def test_a_model_has_the_weights_of_a_checkpoint_and_records_its_step(
    saved_run_model, place, checkpoint, step
):
    folder, params, _ = saved_run_model
    model = RunModel(run=str(folder / place), checkpoint=checkpoint)
    policy, own = model.build(Mesh(dp=1), jax.random.key(5))
    assert policy.decoder.config.width == 32
    assert_equal(own, params[step])
    assert model.recorded() == {"run": str(folder), "checkpoint": step}
    assert_equal(RunModel(**model.recorded()).build(Mesh(dp=1), jax.random.key(5))[1], own)
    abstract, shapes = model.abstract(Mesh(dp=1))
    assert abstract.decoder == policy.decoder
    assert jax.tree.map(lambda x: x.shape, shapes) == jax.tree.map(lambda x: x.shape, own)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("place", "step"), [("", 7), ("/checkpoints/3", 3)])
def test_the_run_may_be_in_an_object_store(saved_run_model, url, place, step):
    folder, params, _ = saved_run_model
    files = [path for path in folder.rglob("*") if path.is_file()]
    ObjectStore(url).upload([path.relative_to(folder).as_posix() for path in files], folder)
    model = RunModel(run=url + place)
    assert model.recorded() == {"run": url, "checkpoint": step}
    assert_equal(model.build(Mesh(dp=1), jax.random.key(5))[1], params[step])


@pytest.mark.slow
def test_a_new_run_begins_with_these_weights_and_its_own_optimizer(saved_run_model):
    folder, params, _ = saved_run_model
    words = [x for x in SMALL if not x.startswith("model")]
    experiment = build(compose([*words, "model=run", f"model.run={folder}", "model.checkpoint=3"]))
    assert_equal(experiment.state.params, params[3])
    read = {"model.run": str(folder), "model.checkpoint": "3", "max_prompt_tokens": 16}
    assert experiment.recorded == read
    assert int(experiment.state.step) == 0


@pytest.mark.slow
def test_the_average_may_be_taken(saved_run_model):
    folder, _, initial = saved_run_model
    model = RunModel(run=str(folder), average=True)
    assert_equal(model.build(Mesh(dp=1), jax.random.key(5))[1], initial)


def test_another_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="is not the folder of a run"):
        RunModel(run=str(tmp_path)).build(Mesh(dp=1), jax.random.key(0))


@pytest.mark.slow
def test_a_reference_has_its_own_model_and_options_that_cannot_act_are_refused(saved_run_model):
    folder, params, initial = saved_run_model
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


SMALL_other_models = (
    *("model=scratch", "model.width=32", "model.layers=1", "model.heads=2"),
    *("data.train_size=20", "data.held_out_size=4", "prompts_per_step=4", "group_size=2"),
)


def refusal(*overrides: str) -> str:
    with pytest.raises(InputError) as caught:
        build(compose([*SMALL_other_models, *overrides]))
    return str(caught.value)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ("reference.reset_every=2", "reset_every=2 has no effect, because no phase compares"),
        ("reference.offload=true", "reference.offload=true has no effect on a CPU"),
        ("optimizer.offload=true", "optimizer.offload=true has no effect on a CPU"),
        ("update.router_loss=0.01", "update.router_loss=0.01 has no effect, because the model has"),
        (
            "update.router_bias_rate=0.1",
            "update.router_bias_rate=0.1 has no effect, because the mo",
        ),
        pytest.param(
            *("model.exact=true rollout.top_p=0.9", "rollout.top_p=0.9 keeps tokens by a sum"),
            marks=pytest.mark.skipif(
                jax.__version_info__ >= OTHER_DIGITS, reason="model.exact is refused"
            ),
        ),
        ("+model@reference.model=scratch", "reference.model has no effect, because no phase"),
        ("kl=fixed reference.reset_every=80 steps=80", "never resets the reference of a run of"),
        ("advantage=distill", "advantage=distill needs a teacher"),
    ],
)
def test_models_that_cannot_act_or_are_missing_are_named(overrides, sentence):
    assert sentence in refusal(*overrides.split())


def test_a_reference_that_is_reset_is_part_of_the_state():
    experiment = build(compose([*SMALL_other_models, "kl=fixed", "reference.reset_every=2"]))
    copies = experiment.state.reference
    assert jax.tree.structure(copies) == jax.tree.structure(experiment.state.params)
    assert experiment.loop.scoring.reference is None


@pytest.mark.quick(1)
@pytest.mark.parametrize("beside", ["reference", "teacher"])
def test_models_that_only_score_hold_their_matrices_in_the_dtype_of_activations(beside):
    words = ["kl=fixed"] if beside == "reference" else ["advantage=distill"]
    words += [] if beside == "reference" else ["+model@teacher=scratch", "teacher.dtype=bfloat16"]
    experiment = build(compose([*SMALL_other_models, "model.dtype=bfloat16", *words]))
    scoring, params = experiment.loop.scoring, experiment.state.params
    decoder, held = scoring.reference if beside == "reference" else scoring.teacher
    dtypes = {str(x.dtype) for x in jax.tree.leaves(params)}
    assert dtypes == {"float32"}
    assert {str(held["embedding"].dtype), str(held["norm"]["scale"].dtype)} == {
        "bfloat16",
        "float32",
    }
    if beside == "reference":  # a copy, which an update does not donate, with the same results
        tokens = np.arange(12, dtype=np.int32).reshape(2, 6)
        places = np.broadcast_to(np.arange(6, dtype=np.int32), (2, 6))
        rows = tokens, places, np.ones_like(tokens)
        exact, narrow = (
            decoder.logits(x, decoder.hidden(x, *map(jnp.asarray, rows))) for x in (params, held)
        )
        np.testing.assert_array_equal(exact, narrow)
        addresses = {x.unsafe_buffer_pointer() for x in jax.tree.leaves(params)}
        assert not addresses & {x.unsafe_buffer_pointer() for x in jax.tree.leaves(held)}


@pytest.mark.slow
def test_a_teacher_of_another_vocabulary_is_refused(tmp_path):
    policy, params = Pretrained(path="rl4p/tiny").build(Mesh(dp=1), jax.random.key(0))
    write_policy(tmp_path / "teacher", policy, params, None)
    words = ("advantage=distill", "+model@teacher=pretrained", f"teacher.path={tmp_path}/teacher")
    build(compose([*SMALL_other_models, *words]))
    more = "The policy can sample token ids below 300, but the teacher's embedding has only 264 row"
    assert more in refusal(*words, "model.vocabulary=300")
    path = tmp_path / "teacher" / "tokenizer.json"
    path.write_text(path.read_text().replace('"A":', '"Aa":'))
    assert "their vocabularies differ" in refusal(*words)
