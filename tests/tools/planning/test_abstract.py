"""Tests that a plan sees arrays of the same shapes and shardings as a run."""

from dataclasses import fields, replace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from rl4p.base.errors import InputError
from rl4p.base.types import Trajectories
from rl4p.configuration import compose, instantiate
from rl4p.distributed.mesh import Mesh
from rl4p.runs.build import build
from rl4p.tools.planning import abstract
from rl4p.tools.planning.abstract import OF_ROWS, abstract_run, bytes_of_chip, compilable
from rl4p.tools.planning.programs import scoring, unplanned, updates
from rl4p.tools.planning.topology import DescribedMesh, estimated

SMALL = (
    "model=scratch",
    "model.width=32",
    "model.layers=1",
    "model.heads=2",
    "model.feed_forward_width=64",
    "data.train_size=20",
    "data.held_out_size=4",
    "prompts_per_step=4",
    "group_size=2",
    "max_response_tokens=8",
    "mesh=single",
    "tracker=none",
)
ALL = (
    "advantage=gae",
    "critic=separate",
    "kl=fixed",
    "ema.decay=0.5",
    "optimizer.moment_dtype=bfloat16",
)
ADAPTERS = (
    *("model=tiny", "model.lora.rank=2", "model.dtype=bfloat16", "kl=fixed"),
    *(each for each in SMALL if not each.startswith("model")),
)


def both(*overrides, small=SMALL):
    config = compose([*small, *overrides])
    return build(config), abstract_run(config, instantiate(config.mesh))


def looks(tree):
    return jax.tree.map(lambda x: (x.shape, str(x.dtype), x.sharding), tree)


def parts(tree):
    """Returns shapes, dtypes and shard shapes, which ignore equivalent spellings of a sharding."""
    return jax.tree.map(lambda x: (x.shape, str(x.dtype), x.sharding.shard_shape(x.shape)), tree)


@pytest.fixture(
    scope="module",
    params=[(SMALL, ()), (SMALL, ALL), (ADAPTERS, ())],
    ids=["plain", "all", "adapters"],
)
def pair(request):
    small, overrides = request.param
    return both(*overrides, small=small)


@pytest.mark.quick(1)
def test_the_state_is_that_of_a_run(pair):
    experiment, run = pair
    for name in ("step", "params", "optimizer_state", "average"):
        real, planned = getattr(experiment.state, name), getattr(run.state, name)
        assert looks(planned) == looks(real), name
    assert run.state.key.shape == ()
    assert run.state.key.dtype == experiment.state.key.dtype


def test_what_is_frozen_is_what_a_run_keeps_beside_its_state(pair):
    experiment, run = pair
    policy, reference = experiment.loop.policy, experiment.loop.scoring.reference
    kept = [policy.frozen]
    if reference is not None:
        decoder, reference_params = reference
        assert decoder == policy.decoder
        assert run.reference is not None
        assert run.reference[0] == decoder
        assert looks(run.reference[1]) == looks(reference_params)
        if not policy.frozen:
            kept.append(reference_params)
    assert bytes_of_chip(run.frozen) == sum(
        x.size * x.dtype.itemsize for x in jax.tree.leaves(kept)
    )
    assert looks(run.policy.merged(run.state.params)) == looks(
        policy.merged(experiment.state.params)
    )
    assert "critic" not in run.policy.without_critic(run.state.params)
    assert looks(run.resident) == looks((run.state, run.frozen))


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("overrides", "copies", "overlaps"),
    [
        (("collector=asynchronous",), 2, True),
        (("collector=asynchronous", "collector.ahead=0"), 0, False),
        (("collector=asynchronous", "collector.ahead=0", "collector.over_sampling=2"), 2, True),
        (("collector=lagged", "collector.lag=2"), 3, False),
        (("collector=dynamic_sampling",), 0, False),
    ],
)
def test_the_copies_that_a_collector_keeps_are_frozen_too(overrides, copies, overlaps):
    config = compose([*SMALL, *overrides])
    run = abstract_run(config, instantiate(config.mesh))
    plain = abstract_run(compose(SMALL), run.mesh)
    more = bytes_of_chip(run.frozen) - bytes_of_chip(plain.frozen)
    assert more == copies * bytes_of_chip(run.state.params)
    assert run.overlaps == overlaps


def test_parameters_are_sampled_with_as_the_run_hands_them_over(pair):
    experiment, run = pair
    policy = experiment.loop.policy
    assert parts(run.sampling_params()) == parts(policy.for_sampling(experiment.state.params))
    for name, x in run.copied_for_sampling().items():
        assert x is not run.policy.without_critic(run.state.params)[name]


@pytest.mark.quick(2)
def test_trajectories_are_those_of_the_sampler_at_their_largest(pair):
    experiment, run = pair
    policy, sampler = experiment.loop.policy, experiment.loop.phases.rollout
    real, _ = sampler(
        policy,
        experiment.state.params,
        experiment.loop.source.take(4, 0),
        group_size=2,
        key=jax.random.key(0),
        version=0,
    )
    planned = run.trajectories()
    assert run.sequences == 8
    assert planned.tokens_BT.shape == (8, run.prompt_columns + 8)
    assert run.prompt_columns == 16  # by the longest prompt, as in the run
    assert planned.group_size == real.group_size == 2
    assert planned.prompt_columns == run.prompt_columns
    for field in fields(Trajectories):
        ours, theirs = getattr(planned, field.name), getattr(real, field.name)
        if hasattr(theirs, "dtype"):
            assert (ours.dtype, ours.ndim) == (theirs.dtype, theirs.ndim), field.name
            assert ours.shape[0] == theirs.shape[0] == 8


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("overrides", "scores"),
    [
        ((), set()),
        (("kl=fixed",), {"reference_logprobs"}),
        (("advantage=gae", "critic=shared"), {"values", "returns"}),
        (("advantage=remax",), {"greedy_rewards"}),
        (("advantage=seed_grpo",), {"answer_clusters"}),
    ],
)
def test_a_batch_has_the_scores_that_phases_need(overrides, scores):
    config = compose([*SMALL, *overrides])
    run = abstract_run(config, instantiate(config.mesh))
    batch = run.batch()
    assert batch.scores.keys() == scores
    whole = batch.trajectories.tokens_BT.shape
    for name, x in batch.scores.items():
        assert x.shape == (whole[:1] if name in OF_ROWS else whole), name
    assert batch.advantages_BT.shape == batch.loss_mask_BT.shape == whole
    assert (batch.advantages_BT.dtype, batch.loss_mask_BT.dtype) == (jnp.float32, jnp.bool_)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("update.minibatches=3", "update.minibatches=3 does not divide the 8 sequences"),
        ("max_response_tokens=5000", "is more than the 2048 positions of the model"),
    ],
)
def test_parts_that_do_not_fit_are_refused_as_in_a_run(override, sentence):
    config = compose([*SMALL, override])
    with pytest.raises(InputError, match=sentence):
        abstract_run(config, instantiate(config.mesh))


def test_a_model_that_cannot_be_planned_with_says_what_it_lacks(monkeypatch):
    config = compose(list(SMALL))
    mesh, original = instantiate(config.mesh), abstract.instantiate

    def without_abstract(node):
        built = original(node)
        return object() if hasattr(built, "abstract") else built

    monkeypatch.setattr(abstract, "instantiate", without_abstract)
    with pytest.raises(InputError) as caught:
        abstract_run(config, mesh)
    assert str(caught.value).startswith(
        "model._target_=rl4p.model.scratch.Scratch cannot be planned: it needs a method "
        "`abstract(mesh)`"
    )


def test_devices_that_only_sample_hold_the_parameters_alone():
    config = compose(list(SMALL))
    run = abstract_run(config, instantiate(config.mesh))
    assert run.resident_while_sampling() == (run.resident, run.copied_for_sampling())
    apart = [*SMALL, "mesh=h100_8", "mesh.fsdp=4", "mesh.rollout_devices=4"]
    config = compose(apart)
    other = abstract_run(config, estimated(instantiate(config.mesh)))
    assert looks(other.resident_while_sampling()) == looks(other.sampling_params())
    assert (
        other.copied_for_sampling().keys() == run.policy.without_critic(run.state.params).keys()
    )  # all of them move


def test_bytes_are_those_of_one_device():
    mesh = AbstractMesh((2, 4), ("a", "b"))

    def array(shape, dtype, *spec):
        sharding = NamedSharding(mesh, PartitionSpec(*spec)) if spec else None
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    assert bytes_of_chip(array((8, 4), jnp.bfloat16)) == 64
    assert bytes_of_chip(array((8, 4), jnp.float32, "a")) == 64
    assert bytes_of_chip(array((8, 4), jnp.float32, "a", "b")) == 16
    assert bytes_of_chip(array((8, 4), jnp.int8, ("a", "b"))) == 4
    assert bytes_of_chip({"x": [array((3,), jnp.bool_), array((), jnp.float32)], "y": {}}) == 7
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 3))
    assert bytes_of_chip(keys) == 3 * 8


def test_a_decode_step_reads_the_head_which_may_be_the_embedding(pair):
    _, run = pair
    number = jax.ShapeDtypeStruct((4,), jnp.float32)
    tied = {"embedding": number, "layers": {}}
    assert run.bytes_per_decode_step(tied) == 16
    head = jax.ShapeDtypeStruct((8,), jnp.float32)
    assert run.bytes_per_decode_step(tied | {"head": head}) == 32
    assert run.bytes_of([number, number]) == 32


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("reference.offload=true",), "offload=true has no effect, because no phase compares"),
        (("kl=fixed", "reference.reset_every=99", "steps=9"), "never resets the reference"),
    ],
)
def test_options_of_a_reference_that_cannot_act_are_refused(words, sentence):
    config = compose([*SMALL, *words])
    with pytest.raises(InputError, match=sentence):
        abstract_run(config, instantiate(config.mesh))


def test_a_reference_that_is_reset_is_scored_as_it_is_held():
    config = compose([*SMALL, "kl=fixed", "reference.reset_every=2", "model.dtype=bfloat16"])
    run = abstract_run(config, instantiate(config.mesh))
    assert run.reference is not None
    assert run.reference[1] is run.state.reference
    assert {str(x.dtype) for x in jax.tree.leaves(run.state.reference)} == {"float32"}


@pytest.mark.parametrize(("momentum", "offers"), [(0.9, True), (0.0, False)])
def test_only_a_state_of_arrays_can_be_offloaded(momentum, offers):
    small = [word for word in SMALL if word != "mesh=single"]
    config = compose([*small, "optimizer=sgd", f"optimizer.momentum={momentum}", "mesh=h100_1"])
    run = abstract_run(config, estimated(instantiate(config.mesh)))
    assert run.can_offload is offers


@pytest.mark.parametrize(
    ("topology", "kernel", "compiled"),
    [
        ("h100:8", "cudnn", "xla"),
        ("h100:8", "xla", "xla"),
        ("v5p:2x2x2", "splash", "splash"),
        (None, "cudnn", "cudnn"),
    ],
)
def test_absent_gpus_have_xla_in_place_of_cudnn(policy, topology, kernel, compiled):
    policy = replace(policy, decoder=replace(policy.decoder, attention=kernel))
    mesh = Mesh(dp=1) if topology is None else DescribedMesh(topology=topology)
    assert compilable(policy, mesh).decoder.attention == compiled


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "phases"),
    [
        (("advantage=distill",), ["teacher", "update"]),
        (("advantage=constant", "update=gkd"), ["update"]),
    ],
)
@pytest.mark.mixed_dtypes  # of optax
def test_a_teacher_is_planned(words, phases):
    shape = ("width=16", "layers=1", "heads=2", "num_kv_heads=1", "feed_forward_width=32")
    experiment, run = both(*words, "+model@teacher=scratch", *(f"teacher.{x}" for x in shape))
    decoder, params = experiment.loop.scoring.teacher
    assert run.teacher is not None
    assert run.teacher[0] == decoder
    assert looks(run.teacher[1]) == looks(params)
    assert bytes_of_chip(run.frozen) == sum(x.nbytes for x in jax.tree.leaves(params))
    assert [each.phase for each in (*scoring(run), *updates(run))] == phases
    assert unplanned(run) == []
    assert unplanned(run, estimated=True) == ["the activations of the teacher"]
    config = compose([*SMALL, *words])
    with pytest.raises(InputError, match=f"{words[-1]} needs a teacher: add"):
        abstract_run(config, instantiate(config.mesh))


def test_a_plan_names_that_it_lacks_cudnn():
    config = compose([*SMALL])
    run = abstract_run(config, instantiate(config.mesh))
    assert unplanned(run) == []
    (named,) = unplanned(replace(run, lacks_cudnn=True))
    assert "cudnn" in named
