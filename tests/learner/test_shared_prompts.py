import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl4p.base.types import Microbatching, Sampling, TrainingBatch
from rl4p.distributed.mesh import Mesh
from rl4p.learner.critic import Separate, Shared
from rl4p.learner.gradient_step import gradient_step, shares_prompts
from rl4p.learner.logprobs import ScoreOptions, score_tokens
from rl4p.learner.shared_prompts import SharedPrompts, keys_of_equal_cost, pays
from rl4p.model.attention import SHARED_PROMPT
from rl4p.model.decoder_config import ConvolutionConfig, DeltaConfig, MambaConfig
from rl4p.model.lora import LoRA
from rl4p.rollout.sampler import answers
from rl4p.update.ppo import PPO

pytestmark = pytest.mark.slow  # continuous integration runs this file
PROMPTS, G, R = (40, 17, 60, 1), 4, 8
B, W, T = len(PROMPTS) * G, 64, 64 + R
LENGTHS = (8, 1, 5, 2, 3, 3, 3, 3, 8, 8, 2, 4, 6, 1, 4, 7)
SAMPLING = Sampling(temperature=1.5)


@pytest.fixture(scope="module")
def trajectories(policy, make_prompt, make_completions):
    """Four prompts, of one token to sixty, and four responses to each; rows in no order."""
    random = np.random.default_rng(0)
    prompts = [make_prompt(tuple(random.integers(0, 256, n).tolist())) for n in PROMPTS]
    tokens = random.integers(0, 256, (B, R), np.int32)
    made, _ = answers(policy, prompts, make_completions(tokens, LENGTHS, -6.0), R)
    assert (made.group_size, made.prompt_columns) == (G, W)
    order = random.permutation(B)
    return jax.tree.map(lambda x: jnp.asarray(x)[order], made)


def alone(trajectories):
    """The same rows, of which nothing is known."""
    return dataclasses.replace(trajectories, group_size=1, prompt_columns=0)


@pytest.fixture(scope="module")
def gradient(params, make_objective):
    """Of PPO's loss, as Adam would have it, and the metrics."""

    class Gradient:
        def transform(self):
            return optax.GradientTransformation(
                lambda params: jax.tree.map(jnp.zeros_like, params),
                lambda gradient, state, params=None: (gradient, gradient),
            )

        def learning_rate_at(self, step):
            return 0.0 * jnp.asarray(step, jnp.float32)

    optimizer = Gradient()

    def of(decoder, trajectories, make_state, *, trained=None, frozen=None, tokens=150, **phases):
        mask = trajectories.response_mask_BT
        advantages = np.random.default_rng(1).normal(size=(B, 1)).astype(np.float32)
        batch = TrainingBatch(
            trajectories=trajectories,
            advantages_BT=jnp.where(mask, advantages, 0),
            loss_mask_BT=mask,
            scores={},
        )
        objective = make_objective(
            PPO(tokens_per_microbatch=tokens), sampling=SAMPLING, decoder=decoder, **phases
        )
        state = make_state(params if trained is None else trained, optimizer)
        coefficients = {"kl": jnp.float32(0), "entropy": jnp.float32(0)}
        state, metrics = gradient_step(
            objective, optimizer, frozen or {}, state, batch, coefficients
        )
        return state.optimizer_state, metrics

    return of


def assert_alike(ours, expected):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        assert np.linalg.norm(a - b) <= 5e-6 * max(np.linalg.norm(b), 1e-3)


@pytest.mark.parametrize("tokens", [1, 150])
def test_gradients_are_those_of_whole_rows(policy, gradient, make_state, trajectories, tokens):
    whole = gradient(policy.decoder, alone(trajectories), make_state)
    shared = gradient(policy.decoder, trajectories, make_state, tokens=tokens)
    assert_alike(shared[0], whole[0])
    assert shared[1].keys() == whole[1].keys()
    for name in whole[1]:
        np.testing.assert_allclose(shared[1][name], whole[1][name], rtol=1e-5, atol=1e-6)


def test_layers_that_slide_see_as_far_into_the_prompt(policy, gradient, make_state, trajectories):
    config = dataclasses.replace(policy.decoder.config, sliding=(True, False), window=7)
    decoder = dataclasses.replace(policy.decoder, config=config)
    shared = gradient(decoder, trajectories, make_state)
    assert_alike(shared[0], gradient(decoder, alone(trajectories), make_state)[0])
    everything = gradient(policy.decoder, trajectories, make_state)
    assert abs(shared[1]["update/entropy"] - everything[1]["update/entropy"]) > 1e-4


@pytest.mark.parametrize("tokens", [1, 150])
def test_rows_begin_with_the_state_after_their_prompt(
    policy, gradient, make_state, trajectories, tokens
):
    config = dataclasses.replace(
        policy.decoder.config,
        layers=4,
        mixers=("delta", "mamba", "convolution", "attention"),
        mamba=MambaConfig(heads=4, head_width=8, groups=2, state=8),
        convolution=ConvolutionConfig(),
        delta=DeltaConfig(key_heads=2, value_heads=4, key_width=8, value_width=12),
    )
    decoder = dataclasses.replace(policy.decoder, config=config)
    random = np.random.default_rng(2)
    trained = jax.tree.map(
        lambda x: jnp.asarray(x + random.normal(0, 0.1, x.shape), jnp.float32),
        decoder.init(jax.random.key(0)),
    )
    whole, shared = (
        gradient(decoder, rows, make_state, trained=trained, tokens=tokens)
        for rows in (alone(trajectories), trajectories)
    )
    assert_alike(shared[0], whole[0])
    np.testing.assert_allclose(shared[1]["update/entropy"], whole[1]["update/entropy"], rtol=1e-5)


def test_adapters_alone_have_gradients(policy, params, gradient, make_state, trajectories):
    lora = LoRA(rank=2)
    decoder = dataclasses.replace(policy.decoder, lora=lora)
    adapters = lora.init(jax.random.key(2), params)
    random = np.random.default_rng(3)
    adapters = jax.tree.map(
        lambda x: jnp.asarray(x + random.normal(0, 0.02, x.shape), jnp.float32), adapters
    )
    options = {"trained": adapters, "frozen": params}
    shared = gradient(decoder, trajectories, make_state, **options)
    assert_alike(shared[0], gradient(decoder, alone(trajectories), make_state, **options)[0])


def test_scores_are_those_of_whole_rows(policy, params, trajectories):
    names = ("logprobs", "entropy", "collision")
    whole, shared = (
        score_tokens(
            ScoreOptions(
                decoder=policy.decoder,
                sampling=SAMPLING,
                microbatching=Microbatching(tokens=tokens),
                names=names,
            ),
            params,
            rows,
        )
        for rows, tokens in ((alone(trajectories), 10_000), (trajectories, 150))
    )
    for name in names:
        assert shared[name].shape == (B, T)
        np.testing.assert_allclose(shared[name], whole[name], atol=5e-6)


def test_a_group_has_one_prompt(policy, params, gradient, make_state, trajectories):
    """So what stands in the others' place is not read; alone, each row has its own."""
    order = np.argsort(trajectories.group_ids_B, stable=True)
    others = np.delete(order, np.arange(0, B, G))
    columns = np.arange(T) < W - 1
    tokens = jnp.asarray(trajectories.tokens_BT)
    tokens = tokens.at[others].set(jnp.where(columns, 65, tokens[others]))
    changed = dataclasses.replace(trajectories, tokens_BT=tokens)
    results = [gradient(policy.decoder, rows, make_state)[0] for rows in (trajectories, changed)]
    jax.tree.map(np.testing.assert_array_equal, *results)
    a, b = (gradient(policy.decoder, alone(x), make_state)[1] for x in (trajectories, changed))
    assert abs(a["update/entropy"] - b["update/entropy"]) > 1e-4
    options = ScoreOptions(
        decoder=policy.decoder, sampling=SAMPLING, microbatching=Microbatching(tokens=150)
    )
    a, b = (score_tokens(options, params, x)["logprobs"] for x in (trajectories, changed))
    np.testing.assert_array_equal(a, b)


def test_prompts_are_shared_only_where_it_pays_and_is_right(trajectories, make_objective):
    def shares(update=PPO(), rows=trajectories, **phases):  # noqa: B008
        return shares_prompts(make_objective(update, **phases), rows)

    assert shares()
    assert shares(critic=Shared())
    assert not shares(critic=Separate())  # which runs the rows itself
    assert not shares(PPO(minibatches=2))  # which divide groups
    for known in ({"group_size": 1}, {"prompt_columns": 32}):
        assert not shares(rows=dataclasses.replace(trajectories, **known))


@pytest.mark.parametrize(
    ("attention", "softcap"), [("xla", 9.0), ("cudnn", None), ("splash", None), ("splash", 9.0)]
)
def test_responses_share_rows_where_it_pays_and_is_possible(
    policy, trajectories, attention, softcap
):
    order = np.argsort(trajectories.group_ids_B, stable=True)
    rows = jax.tree.map(lambda x: x[order], trajectories)
    config = dataclasses.replace(policy.decoder.config, attention_softcap=softcap)
    decoder = dataclasses.replace(policy.decoder, attention=attention, config=config)

    def packs(rows, shared=True):
        prompts = SharedPrompts.of(decoder, rows, Microbatching(tokens=150), shared=shared)
        return prompts.packing(prompts.rest(rows).segment_ids_BT) is not None

    assert packs(rows) is (attention != "splash" or softcap is None)
    assert not packs(rows, shared=False)
    few = jax.tree.map(lambda x: x[: 5 * 3], rows)
    assert not packs(dataclasses.replace(few, group_size=3))


@pytest.mark.parametrize(("packed", "segment"), [(True, SHARED_PROMPT), (False, 1)])
def test_the_segment_of_a_prompt(policy, trajectories, packed, segment):
    order = np.argsort(trajectories.group_ids_B, stable=True)
    rows = jax.tree.map(lambda x: x[order], trajectories)
    prompts = SharedPrompts.of(policy.decoder, rows, Microbatching(tokens=150), shared=True)
    segments_BS = prompts.before((), jnp.arange(4), packed=packed).segment_ids_BS
    assert np.sum(segments_BS == segment, axis=1).tolist() == [length - 1 for length in PROMPTS]
    assert set(np.unique(segments_BS)) == {0, segment}


@pytest.mark.parametrize(("devices", "whole"), [(1, True), (2, True), (4, True), (3, False)])
def test_devices_have_whole_groups(policy, monkeypatch, trajectories, devices, whole):
    monkeypatch.setattr(Mesh, "row_shards", devices)
    assert pays(policy.decoder, trajectories, Mesh()) is whole
    monkeypatch.setattr(Mesh, "column_shards", 2)
    assert not pays(policy.decoder, trajectories, Mesh())


def test_attention_costs_as_much_as_the_products_at_so_many_keys(policy):
    """The operations of a token: 2 of a weight, and 4 of a number of a key."""
    decoder, c = policy.decoder, policy.decoder.config
    keys = keys_of_equal_cost(decoder)
    kernels = jax.tree.leaves_with_path(jax.eval_shape(decoder.init, jax.random.key(0)))
    weights = sum(
        x.size for path, x in kernels if "layers" in str(path[0]) and "kernel" in str(path[-1])
    )
    operations = 4 * keys * c.heads * c.head_width * c.layers
    np.testing.assert_allclose(4 * operations, 2 * weights, rtol=1e-6)
    kernel = dataclasses.replace(decoder, attention="cudnn")
    assert keys_of_equal_cost(kernel) == 4 * keys
    experts = dataclasses.replace(
        decoder, experts="grouped", config=dataclasses.replace(c, experts=8, chosen_experts=2)
    )
    all_experts = dataclasses.replace(experts, experts="dense")
    grouped, dense = keys_of_equal_cost(experts), keys_of_equal_cost(all_experts)
    assert keys < grouped < dense
    np.testing.assert_allclose((dense - keys) / (grouped - keys), 7)
