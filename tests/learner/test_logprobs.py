import dataclasses
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.types import Microbatching, Sampling
from rl4p.learner import logprobs
from rl4p.learner.logprobs import ScoreOptions, TeacherRows, score_tokens, token_scores, trunk
from rl4p.model.cache import KeysValues, Prefix
from rl4p.update.gkd import GKD
from tests.support.equations import equations


@pytest.fixture(scope="module")
def trajectories(make_trajectories):
    return make_trajectories()


@pytest.mark.quick(1)
@pytest.mark.parametrize("temperature", [0.5, 1.5])
def test_scores_are_aligned_with_their_tokens(
    policy, params, trajectories, numpy_logits, score_all, temperature
):
    """Log p of token t stands at t, and was made from the tokens before it."""
    sampling = Sampling(temperature=temperature)
    for x in score_all(policy.decoder, params, trajectories, sampling)[:3]:
        assert not np.where(trajectories.response_mask_BT, 0, x).any()
    trajectories = dataclasses.replace(
        trajectories, response_mask_BT=trajectories.segment_ids_BT > 0
    )
    ours, entropy, collision, _ = score_all(policy.decoder, params, trajectories, sampling)
    assert not ours[:, 0].any()
    for row in (0, 1, 3):
        real = np.flatnonzero(trajectories.segment_ids_BT[row])
        tokens = np.asarray(trajectories.tokens_BT[row, real])
        scores = numpy_logits(policy.decoder.config, params, tokens)[:-1] / temperature
        scores -= np.log(np.sum(np.exp(scores), axis=1, keepdims=True))
        expected = scores[np.arange(len(tokens) - 1), tokens[1:]]
        np.testing.assert_allclose(ours[row, real[1:]], expected, atol=1e-5)
        np.testing.assert_allclose(
            entropy[row, real[1:]], -np.sum(np.exp(scores) * scores, axis=1), atol=1e-5
        )
        squares = np.sum(np.exp(2 * scores), axis=1)
        np.testing.assert_allclose(collision[row, real[1:]], squares, rtol=1e-4)


@pytest.mark.slow
def test_logits_a_few_tokens_at_a_time_change_nothing(policy, params, trajectories, monkeypatch):
    """15 columns, seven at a time."""

    def loss(params, columns):
        monkeypatch.setattr(logprobs, "columns_per_chunk", lambda *_: columns)
        hidden_BTD = trunk(policy.decoder, params, trajectories)
        scores, entropy, *_ = token_scores(
            policy.decoder, params, hidden_BTD, trajectories, Sampling()
        )
        kept = trajectories.response_mask_BT
        return jnp.sum(jnp.where(kept, scores + 0.1 * entropy, 0)), (scores, entropy)

    chunked, whole = (
        jax.jit(jax.value_and_grad(lambda p, n=n: loss(p, n), has_aux=True))(params)
        for n in (7, 15)
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), chunked, whole
    )


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_few_chunks_add_to_the_gradient_of_the_head_in_float32(
    policy, make_trajectories, platform, dtype
):
    """Reads the program for a large vocabulary; parameters are bfloat16 where `fsdp` gathers."""
    config = dataclasses.replace(policy.decoder.config, vocabulary=152_064)
    decoder = dataclasses.replace(
        policy.decoder, config=config, dtype="bfloat16", platform=platform
    )

    def wide(x):
        return jax.ShapeDtypeStruct((4, 1025) if x.ndim == 2 else (4,), x.dtype)

    batch = jax.tree.map(wide, make_trajectories())
    params = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, dtype),
        jax.eval_shape(decoder.init, jax.random.key(0)),
    )

    def loss(params, batch):
        hidden_BTD = trunk(decoder, params, batch)
        arguments = (decoder, params, hidden_BTD, batch, Sampling())
        return jnp.sum(token_scores(*arguments).logprobs_BT)

    steps = list(equations(jax.make_jaxpr(jax.grad(loss))(params, batch).jaxpr))
    written = [
        (x.primitive.name, times, result.aval.dtype)
        for times, x in steps
        for result in x.outvars
        if getattr(result.aval, "shape", ()) == (152_064, 32)
    ]
    chunks = 8 if platform == "cpu" else 5
    sums = {(times, kind) for name, times, kind in written if name == "add_any" and times > 1}
    assert sums == {(chunks, jnp.dtype("float32"))}
    assert {times for name, times, _ in written if name == "convert_element_type"} == {1}


@pytest.mark.parametrize(("columns", "before", "block"), [(1025, 511, 512), (769, 0, 256)])
def test_a_kernel_has_large_blocks(policy, columns, before, block):
    """A row has R response tokens and the last of the prompt; the others are a prefix."""
    decoder = dataclasses.replace(policy.decoder, attention="splash", dtype="bfloat16")
    params, c = jax.eval_shape(decoder.init, jax.random.key(0)), decoder.config
    numbers = jax.ShapeDtypeStruct((2, columns), jnp.int32)
    shape = (c.layers, 2, c.num_kv_heads)
    of_keys_and_values = (
        jax.ShapeDtypeStruct((*shape, *x), "bfloat16")
        for x in ((c.head_width, before), (before, c.head_width))
    )
    prefix = Prefix(
        layers=((KeysValues(*of_keys_and_values),),),
        segment_ids_BS=jax.ShapeDtypeStruct((2, before), jnp.int32),
    )

    def activations(params, prefix, numbers):
        batch = SimpleNamespace(
            tokens_BT=numbers, positions_BT=numbers, segment_ids_BT=numbers, experts_BTX=None
        )
        return trunk(decoder, params, batch, prefix)

    program = jax.make_jaxpr(activations)(params, prefix, numbers)
    assert program.out_avals[0].shape == (2, columns, c.width)
    kernels = [x for _, x in equations(program.jaxpr) if x.primitive.name == "pallas_call"]
    blocks = [
        [int(n) for n in mapping.block_aval.shape if isinstance(n, int)]
        for kernel in kernels
        for mapping in kernel.params["grid_mapping"].block_mappings
    ]
    assert blocks
    assert max(map(max, blocks)) == block


@pytest.mark.slow
def test_the_last_token_predicts_none(policy, params, trajectories):
    """Its activations are 0 with a kernel; no score changes."""
    hidden_BTD = trunk(policy.decoder, params, trajectories)
    without = hidden_BTD.at[:, -1].set(0)
    sampling = Sampling()
    both = (
        token_scores(policy.decoder, params, x, trajectories, sampling)
        for x in (hidden_BTD, without)
    )
    for a, b in zip(*(x[:3] for x in both), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("B", "T", "V", "platform", "chunks"),
    [
        (8, 31, 264, "cpu", 1),
        (4, 1024, 152_064, "cpu", 8),  # 2**24 logits are 110 tokens
        (4, 1024, 152_064, "tpu", 5),
        (1, 512, 152_064, "gpu", 1),
        (2, 32_768, 152_064, "tpu", 8),
        (64, 3, 152_064, "tpu", 1),
    ],
)
def test_a_microbatch_has_at_most_eight_chunks(B, T, V, platform, chunks):
    columns = logprobs.columns_per_chunk(B, T, V, platform)
    assert -(-T // columns) == chunks


@pytest.mark.quick(1)
@pytest.mark.parametrize("columns", [3, 7])
def test_chunks_that_hold_no_scored_token_are_left_out(
    policy, params, make_trajectories, monkeypatch, columns
):
    """Responses have so many tokens as a chunk has columns, and all else is not a number."""
    trajectories = make_trajectories((columns,) * 8)
    hidden_BTD = jnp.broadcast_to(jnp.arange(1.0, 33.0), (8, 16, 32))
    read_BT = np.pad(np.asarray(trajectories.response_mask_BT)[:, 1:], ((0, 0), (0, 1)))
    hidden_BTD = jnp.where(read_BT[..., None], hidden_BTD, jnp.nan)

    def loss(params):
        found = token_scores(policy.decoder, params, hidden_BTD, trajectories, Sampling())
        return jnp.sum(found.logprobs_BT)

    monkeypatch.setattr(logprobs, "columns_per_chunk", lambda *_: columns)
    value, gradient = jax.value_and_grad(loss)({"embedding": params["embedding"]})
    assert np.isfinite(value)
    assert np.isfinite(gradient["embedding"]).all()
    assert np.abs(gradient["embedding"]).max() > 0


def test_the_entropy_is_that_of_the_support(policy, params, trajectories, numpy_logits, score_all):
    """Of the three most probable tokens at a temperature of 0.7; the drawn one belongs to them."""
    whole = dataclasses.replace(trajectories, response_mask_BT=trajectories.segment_ids_BT > 0)
    sampling = Sampling(temperature=0.7, top_k=3)
    found = score_all(policy.decoder, params, whole, sampling)
    real = np.flatnonzero(trajectories.segment_ids_BT[0])
    tokens = np.asarray(trajectories.tokens_BT[0, real])
    logits = numpy_logits(policy.decoder.config, params, tokens)[:-1] / 0.7
    for t, row in enumerate(logits):
        kept = sorted({*np.argsort(-row)[:3].tolist(), int(tokens[t + 1])})
        scores = row[kept] - np.log(np.sum(np.exp(row[kept])))
        at = 0, real[t + 1]
        own = scores[kept.index(int(tokens[t + 1]))]
        np.testing.assert_allclose(found.logprobs_BT[at], own, atol=1e-4)
        entropy = -np.sum(np.exp(scores) * scores)
        np.testing.assert_allclose(found.entropy_BT[at], entropy, atol=1e-4)
        np.testing.assert_allclose(found.collision_BT[at], np.sum(np.exp(2 * scores)), atol=1e-4)


@pytest.mark.slow
def test_scores_are_those_that_were_asked_for(policy, params, trajectories):
    """A critic's function sees the parameters, the activations and the rows of a microbatch."""

    def first(decoder, params, hidden_BTD, trajectories):
        return hidden_BTD[..., 0] + params["norm"]["scale"][0] * jnp.float32(trajectories.tokens_BT)

    options = ScoreOptions(
        decoder=policy.decoder,
        sampling=Sampling(),
        microbatching=Microbatching(tokens=3 * 16),
        names=("entropy",),
        values=first,
    )
    found = score_tokens(options, params, trajectories)
    assert set(found) == {"entropy", "values"}
    hidden_BTD = trunk(policy.decoder, params, trajectories)
    expected = first(policy.decoder, params, hidden_BTD, trajectories)
    real = np.asarray(trajectories.segment_ids_BT) > 0
    np.testing.assert_allclose(found["values"][real], expected[real], atol=1e-4)


@pytest.mark.slow
def test_scoring_in_microbatches_is_scoring_at_once(policy, params, trajectories, score_all):
    sampling = Sampling(temperature=1.5, top_k=40, top_p=0.9)
    whole = score_all(policy.decoder, params, trajectories, sampling)
    names = ("logprobs", "entropy", "collision")
    options = ScoreOptions(
        decoder=policy.decoder,
        sampling=sampling,
        microbatching=Microbatching(tokens=3 * 16),
        names=names,
    )
    parts = score_tokens(options, params, trajectories)
    assert set(parts) == set(names)
    for ours, expected in zip(map(parts.get, names), whole[:3], strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-5)


@pytest.mark.slow
def test_a_token_outside_the_support_has_a_finite_score_and_gradient(policy, params, trajectories):
    """Random tokens are hardly ever among the two most probable."""

    def loss(params):
        hidden_BTD = trunk(policy.decoder, params, trajectories)
        sampling = Sampling(top_k=2, top_p=0.5)
        found = token_scores(policy.decoder, params, hidden_BTD, trajectories, sampling)
        return sum(map(jnp.sum, found[:3])), found.logprobs_BT

    (_, scores), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    assert all(jnp.isfinite(x).all() for x in (scores, *jax.tree.leaves(gradient)))
    assert scores.min() < -1


@pytest.fixture(scope="module")
def teacher(policy):
    """Another decoder, with eight more rows in its embedding; far enough from uniform."""
    config = dataclasses.replace(policy.decoder.config, vocabulary=272, feed_forward_width=40)
    decoder = dataclasses.replace(policy.decoder, config=config)
    start = decoder.init(jax.random.key(7))
    return decoder, start | {"embedding": 10 * start["embedding"]}


@pytest.fixture(scope="module")
def distilled(policy, trajectories, teacher):
    """Returns a function that computes scores beside a teacher's, and their gradients."""
    decoder = teacher[0]

    def loss(trained, sampling):
        params, own = trained
        hidden_BTD = trunk(decoder, own, trajectories)
        beside = TeacherRows(decoder, decoder.head(own), hidden_BTD, GKD(beta=0.3).divergence)
        hidden_BTD = trunk(policy.decoder, params, trajectories)
        arguments = (policy.decoder, params, hidden_BTD, trajectories, sampling, None, beside)
        scores = token_scores(*arguments)
        return jnp.sum(scores.compared_BT), scores

    def run(params, own, sampling=Sampling()):  # noqa: B008
        return jax.jit(jax.value_and_grad(partial(loss, sampling=sampling), has_aux=True))(
            (params, own)
        )

    return run


@pytest.mark.slow
def test_a_divergence_is_that_of_whole_distributions(
    policy, params, trajectories, teacher, distilled, numpy_logits, score_all
):
    """The vocabularies differ in rows that no token has, and a cut of the sampler is not theirs."""
    sampling = Sampling(temperature=0.7, top_k=3, top_p=0.9, min_p=0.1)
    (_, found), _ = distilled(params, teacher[1], sampling)
    mask = np.asarray(trajectories.response_mask_BT)
    assert not np.asarray(found.compared_BT)[~mask].any()
    plain = score_all(policy.decoder, params, trajectories, sampling)
    for a, b in zip(found[:3], plain[:3], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    for row in np.flatnonzero(mask.any(axis=1)):
        real = np.flatnonzero(trajectories.segment_ids_BT[row])
        tokens = np.asarray(trajectories.tokens_BT[row, real])
        q, p = (
            np.exp(numpy_logits(config, own, tokens)[:-1, :264] / 0.7)
            for config, own in ((policy.decoder.config, params), (teacher[0].config, teacher[1]))
        )
        q, p = q / q.sum(axis=1, keepdims=True), p / p.sum(axis=1, keepdims=True)
        m = 0.3 * p + 0.7 * q
        expected = np.sum(0.3 * p * np.log(p / m) + 0.7 * q * np.log(q / m), axis=1)
        here = mask[row, real[1:]]
        ours = np.asarray(found.compared_BT)[row, real[1:]]
        np.testing.assert_allclose(ours[here], expected[here], rtol=1e-4, atol=1e-6)
        assert expected.max() > 1e-2


@pytest.mark.slow
def test_a_divergence_a_few_tokens_at_a_time_is_the_same(params, teacher, distilled, monkeypatch):
    found = []
    for columns in (7, 15):
        monkeypatch.setattr(logprobs, "columns_per_chunk", lambda *_, n=columns: n)
        found.append(jax.device_get(distilled(params, teacher[1])))
    ((_, scores), slopes), ((_, whole), expected) = found
    np.testing.assert_allclose(scores.compared_BT, whole.compared_BT, rtol=1e-6, atol=1e-6)
    ours, of_teacher, wanted = (
        np.concatenate([x.ravel() for x in jax.tree.leaves(tree)])
        for tree in (*slopes, expected[0])
    )
    assert np.linalg.norm(ours - wanted) <= 1e-6 * np.linalg.norm(wanted)
    assert np.linalg.norm(wanted) > 1e-2
    np.testing.assert_array_equal(of_teacher, 0)


@pytest.mark.slow
def test_both_models_share_the_logits_of_a_chunk(policy, params, teacher, distilled, monkeypatch):
    seen = []
    monkeypatch.setattr(logprobs, "columns_per_chunk", lambda *x: seen.append(x[2]) or 15)
    distilled(params, teacher[1])
    assert seen == [264 + 272]
