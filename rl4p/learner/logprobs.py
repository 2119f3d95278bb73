"""Log-probabilities of given tokens, from one forward pass without a [B, T, V] array."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rl4p.base.errors import RunError
from rl4p.base.types import Array, Microbatching, Params, Sampling, Trajectories
from rl4p.distributed import collectives
from rl4p.distributed.mesh import ONE_DEVICE, Mesh
from rl4p.distributed.partition import gather
from rl4p.distributed.placement import on_device
from rl4p.learner.microbatches import MicrobatchRows, fold, rows_of, scattered, spread
from rl4p.learner.packing import Packing
from rl4p.learner.shared_prompts import SharedPrompts, pays, take_groups
from rl4p.model import heads
from rl4p.model.decoder import Decoder, Prefix
from rl4p.model.exact_sums import token_logprobs
from rl4p.model.router import RouterLoad
from rl4p.model.sampling import recorded_support, sampling_logits, sampling_logprobs
from rl4p.model.vocabulary import Head

# The float32 logits that exist at a time, recomputed in the backward pass: 64 MiB on a CPU, which
# reads few of them faster, and 512 MiB on other platforms.
LOGITS_PER_CHUNK = {"cpu": 2**24}
LOGITS_PER_CHUNK_ELSEWHERE = 2**27
MOST_CHUNKS = 8  # of a microbatch: each writes a float32 gradient of the head


class TokenScores(NamedTuple):
    """Scores of every response token from one forward pass, aligned with `tokens_BT`.

    Only this module handles the offset between a token and the position that predicts it. All
    scores are 0 outside the response mask and in the first column, which no position predicts.

    Attributes:
      logprobs_BT: float32 log p(token t | tokens before t) under the distribution of `Sampling`,
        with token t itself always kept in the support, or over the support of the sampler
        (`Sampling.replay_support`).
      entropy_BT: float32, entropy of the distribution that token t was drawn from, in nats.
      collision_BT: float32, sum of the squared probabilities of that distribution.
      compared_BT: float32, the divergence from a teacher (`TeacherRows`), or the expected score
        (`SamplerRows`); None without either.
    """

    logprobs_BT: Array
    entropy_BT: Array
    collision_BT: Array
    compared_BT: Array | None = None


class TeacherRows(NamedTuple):
    """A teacher beside the rows of a forward pass.

    Both distributions are those of the whole vocabulary, without top-k, top-p and min-p.

    Attributes:
      decoder, head: the teacher and its prepared head.
      hidden_BTD: its activations of the rows (`trunk`), of its own width.
      divergence: `protocols.Distils.divergence`.
    """

    decoder: Decoder
    head: Head
    hidden_BTD: Array
    divergence: Callable[[Array, Array], Array]

    @property
    def vocabulary(self) -> int:
        return self.decoder.config.vocabulary

    def columns(self) -> tuple[Array, ...]:
        """Returns the arrays that `compare` takes in chunks."""
        return (collectives.predicting(self.hidden_BTD),)

    def compare(
        self,
        logits_BCV: Array,
        sampling: Sampling,
        temperature: Array | None,
        hidden_BCD: Array,
    ) -> Array:
        """Returns the divergences [B, C] from the logits of the policy and own activations.

        Sizes of one family differ in rows of the embedding that no token has: rows beyond the
        policy's are left out.
        """
        own_BCV = self.decoder.logits_of(self.head, hidden_BCD)[..., : logits_BCV.shape[-1]]
        own_BCV = jax.lax.stop_gradient(own_BCV)
        uncut = replace(sampling, top_k=0, top_p=1.0, min_p=0.0)
        both = (sampling_logprobs(x, uncut, None, temperature) for x in (logits_BCV, own_BCV))
        return self.divergence(*both)


class SamplerRows(NamedTuple):
    """The sampler's most probable tokens beside the rows of a forward pass.

    Attributes:
      tokens_BTA, logprobs_BTA: `Trajectories.alternatives_BTA` and their log-probabilities.
      expected_score: `protocols.Centers.expected_score` of both log-probabilities.
    """

    tokens_BTA: Array
    logprobs_BTA: Array
    expected_score: Callable[[Array, Array], Array]

    @property
    def vocabulary(self) -> int:
        return 0  # no more logits than the policy's

    def columns(self) -> tuple[Array, ...]:
        """Returns the arrays that `compare` takes in chunks."""
        return collectives.predicted(self.tokens_BTA), collectives.predicted(self.logprobs_BTA)

    def compare(
        self,
        logits_BCV: Array,
        sampling: Sampling,
        temperature: Array | None,
        tokens_BCA: Array,
        behaviour_BCA: Array,
    ) -> Array:
        """Returns the expected scores [B, C]."""
        logprobs_BCV = sampling_logprobs(logits_BCV, sampling, None, temperature)
        own_BCA = jnp.take_along_axis(logprobs_BCV, tokens_BCA, axis=-1)
        return self.expected_score(own_BCA, behaviour_BCA)


def token_scores(
    decoder: Decoder,
    params: Params,
    hidden_BTD: Array,
    trajectories: Trajectories,
    sampling: Sampling,
    temperature: Array | None = None,
    beside: TeacherRows | SamplerRows | None = None,
) -> TokenScores:
    """Scores the tokens of the responses from the trunk's activations (`trunk`).

    `temperature` replaces `sampling.temperature` (`sampling_logprobs`). `beside` adds the
    divergence from a teacher, which has no gradient in the teacher, or the expected score under the
    sampler.

    The logits exist in chunks of some columns (`columns_per_chunk`), of policy and teacher
    together. With more than one chunk, the response tokens of each row are sorted to the front, and
    chunks without any response token are skipped.
    """
    mask_BT = collectives.predicted(trajectories.response_mask_BT)
    inputs = [collectives.predicting(hidden_BTD), collectives.predicted(trajectories.tokens_BT)]
    B, T = mask_BT.shape

    head, V = decoder.head(params), decoder.config.vocabulary
    support = support_columns(trajectories) if sampling.replay_support else ()
    inputs += support
    if beside is not None:
        V += beside.vocabulary
        inputs += beside.columns()

    def score(hidden_BCD: Array, targets_BC: Array, *columns: Array) -> tuple[Array, ...]:
        logits_BCV = decoder.logits_of(head, hidden_BCD)
        support_BCV = None
        if support:
            (tokens_BCA, behaviour_BCA, sampled_BC), columns = columns[:3], columns[3:]
            support_BCV = recorded_support(tokens_BCA, behaviour_BCA, logits_BCV.shape[-1])
            support_BCV |= ~sampled_BC[..., None]
        options = sampling, targets_BC, temperature, support_BCV
        logprobs_BCV = sampling_logprobs(logits_BCV, *options)
        # Outside the support, -inf times a probability of 0 would be nan.
        finite_BCV = jnp.where(jnp.isfinite(logprobs_BCV), logprobs_BCV, 0.0)
        probs_BCV = jnp.exp(logprobs_BCV)
        chosen_BC = jnp.take_along_axis(logprobs_BCV, targets_BC[..., None], axis=-1)[..., 0]
        if decoder.exact:
            scaled_BCV = sampling_logits(logits_BCV, *options)
            chosen_BC = token_logprobs(scaled_BCV, targets_BC)
        scores = (
            chosen_BC,
            -jnp.sum(probs_BCV * finite_BCV, axis=-1),
            jnp.sum(jnp.square(probs_BCV), axis=-1),
        )
        if beside is None:
            return scores
        return *scores, beside.compare(logits_BCV, sampling, temperature, *columns)

    width = columns_per_chunk(B, T, V, decoder.platform)
    if width >= T:
        scores = jax.checkpoint(score)(*inputs)
    else:
        order_BT = jnp.argsort(~mask_BT, axis=1)

        def chunks(x: Array) -> Array:
            """Returns [B, T, ...] sorted by `order_BT`, as [chunks, B, width, ...]."""
            order = order_BT.reshape(*order_BT.shape, *(1,) * (x.ndim - 2))
            x = jnp.take_along_axis(x, order, axis=1)
            x = jnp.pad(x, ((0, 0), (0, -T % width), *((0, 0),) * (x.ndim - 2)))
            return jnp.moveaxis(x.reshape(B, -1, width, *x.shape[2:]), 1, 0)

        @jax.checkpoint  # around `cond`: inside it, each chunk would keep a copy of the head
        def score_chunk(chunk: tuple[Array, ...]) -> tuple[Array, ...]:
            *inputs, mask_BC = chunk
            nothing = (jnp.zeros(mask_BC.shape, jnp.float32),) * (3 if beside is None else 4)
            return jax.lax.cond(jnp.any(mask_BC), score, lambda *_: nothing, *inputs)

        in_chunks = jax.lax.map(score_chunk, (*map(chunks, inputs), chunks(mask_BT)))
        in_order = (jnp.moveaxis(x, 0, 1).reshape(B, -1)[:, :T] for x in in_chunks)
        back_BT = jnp.argsort(order_BT, axis=1)
        scores = tuple(jnp.take_along_axis(x, back_BT, axis=1) for x in in_order)
    masked = (jnp.where(mask_BT, x, 0.0) for x in scores)
    return TokenScores(*map(collectives.shift_to_targets, masked))


def support_columns(t: Trajectories) -> tuple[Array, ...]:
    """Returns the recorded support of each predicted token, and whether a policy drew the token."""
    if t.alternatives_BTA is None or t.alternative_logprobs_BTA is None:
        raise RunError(
            "These samples were not recorded with the tokens that could be drawn, over which "
            "rollout.replay_support=true normalises: begin a new run."
        )
    columns = t.alternatives_BTA, t.alternative_logprobs_BTA, t.policy_version_BT >= 0
    return tuple(map(collectives.predicted, columns))


def columns_per_chunk(B: int, T: int, V: int, platform: str) -> int:
    """Returns how many of T columns have logits at a time: T / `MOST_CHUNKS`, or more if few."""
    logits = LOGITS_PER_CHUNK.get(platform, LOGITS_PER_CHUNK_ELSEWHERE)
    return max(1, logits // (B * V), -(-T // MOST_CHUNKS))


def trunk(
    decoder: Decoder, params: Params, trajectories: Trajectories, before: Prefix | None = None
) -> Array:
    """Returns the activations [B, T, D] that every head reads, of all tokens but the last.

    Devices that divide the columns (`collectives.py`) have their own, also of the last token.

    The last token predicts none, and its activations may be 0. A kernel does not run it: with the
    last token of the prompt, which predicts the first of R response tokens, there would be R + 1
    columns, which neither blocks of 512 nor even numbers divide. A score head reads it, so that a
    model with one always runs it.
    """
    tokens, experts_BTX, more = tokens_to_run(decoder, trajectories)
    hidden_BTD = decoder.hidden(params, *tokens, before, experts_BTX)
    return jnp.pad(hidden_BTD, ((0, 0), (0, more), (0, 0)))


def trunk_and_load(
    decoder: Decoder, params: Params, trajectories: Trajectories, before: Prefix | None = None
) -> tuple[Array, RouterLoad]:
    """Returns `trunk`, and what the routers do with its tokens."""
    tokens, experts_BTX, more = tokens_to_run(decoder, trajectories)
    hidden_BTD, load = decoder.hidden_and_load(params, *tokens, before, experts_BTX)
    return jnp.pad(hidden_BTD, ((0, 0), (0, more), (0, 0))), load


def tokens_to_run(
    decoder: Decoder, t: Trajectories
) -> tuple[tuple[Array, Array, Array], Array | None, int]:
    """Returns the tokens that `trunk` runs, their experts, and how many columns it does not run."""
    ours, more = slice(None), 0
    scored = decoder.config.labels > 0  # at the last token
    if decoder.attention != "xla" and collectives.devices() == 1 and not scored:
        ours, more = slice(-1), 1
    tokens = t.tokens_BT[:, ours], t.positions_BT[:, ours], t.segment_ids_BT[:, ours]
    return tokens, None if t.experts_BTX is None else t.experts_BTX[:, ours], more


class ForwardRows(NamedTuple):
    """The rows of a forward pass, and the places of the sequences of a loss in them.

    Attributes:
      trajectories: the rows, each of one sequence or, packed, of several.
      before: the keys and values before the rows; None if they contain their prompts.
      packing: the places of the sequences in packed rows; None if each has a row of its own.
    """

    trajectories: Trajectories
    before: Prefix | None = None
    packing: Packing | None = None


@dataclass(frozen=True, kw_only=True)
class ScoreOptions:
    """The static options of `score_tokens`: it is compiled for them.

    Attributes:
      sampling: the distribution that the tokens are scored under.
      microbatching: the division of the rows of a device into microbatches.
      mesh: the mesh whose devices share the rows.
      names: the scores to compute: logprobs, entropy, collision (`TokenScores`), values; or score
        alone, of a decoder with a score head, at every token.
      values: the critic's function of (decoder, params, activations, trajectories); None without.
    """

    decoder: Decoder
    sampling: Sampling
    microbatching: Microbatching
    mesh: Mesh = ONE_DEVICE
    names: tuple[str, ...] = ("logprobs",)
    values: Callable[..., Array] | None = None


@partial(jax.jit, static_argnames="options")
def score_tokens(
    options: ScoreOptions,
    params: Params,
    trajectories: Trajectories,
    temperature: Array | None = None,
) -> dict[str, Array]:
    """Scores the response tokens in microbatches, without a gradient: float32 [B, T] by name.

    Args:
      params: the merged parameters; those in the memory of the host are copied to the devices.
      temperature: a scalar in place of `options.sampling.temperature` (`sampling_logprobs`).
    """
    params = on_device(params)
    mesh, replicated = options.mesh, (params, temperature)
    # A critic may run the prompts itself.
    shared = options.values is None and pays(options.decoder, trajectories, mesh)
    score = partial(device_scores, options, shared)
    if not shared:
        return spread(score, replicated, trajectories, trajectories.segment_ids_BT, mesh)
    order_B = jnp.argsort(trajectories.group_ids_B)
    rows = rows_of(trajectories, order_B)
    together = trajectories.group_size
    scores = spread(score, replicated, rows, rows.segment_ids_BT, mesh, together=together)
    return scattered(scores, order_B, len(order_B))


def device_scores(
    options: ScoreOptions,
    shared: bool,
    replicated: tuple[Params, Array | None],
    trajectories: Trajectories,
) -> dict[str, Array]:
    """Returns the scores of the rows of one device.

    Args:
      shared: whether the rows of a group share the computation of their prompt.
      replicated: the parameters and the temperature.
    """
    decoder, values, microbatching = options.decoder, options.values, options.microbatching
    params, temperature = gather(replicated[0], decoder.dtype), replicated[1]
    prompts = SharedPrompts.of(decoder, trajectories, microbatching, shared=shared)
    trajectories, prefixes = prompts.rest(trajectories), prompts.caches(params)
    packing = prompts.packing(trajectories.segment_ids_BT)
    if packing is not None:
        trajectories = packing.pack_trajectories(trajectories)

    def score(
        scores: dict[str, Array], micro: Trajectories, rows: MicrobatchRows
    ) -> dict[str, Array]:
        groups_b = rows.rows_b // prompts.group_size
        layers = take_groups(prefixes, groups_b)
        before = prompts.before(layers, groups_b, packed=packing is not None)
        hidden_BTD = trunk(decoder, params, micro, before)
        if decoder.config.labels:
            return {"score": rows.put(scores["score"], heads.scores(params, hidden_BTD)[..., 0])}
        tokens = token_scores(decoder, params, hidden_BTD, micro, options.sampling, temperature)
        known = {
            "logprobs": tokens.logprobs_BT,
            "entropy": tokens.entropy_BT,
            "collision": tokens.collision_BT,
        }
        new = {name: known[name] for name in options.names if name != "values"}
        if values is not None:
            new["values"] = values(decoder, params, hidden_BTD, micro)
        return {name: rows.put(scores[name], x) for name, x in new.items()}

    zeros_BT = jnp.zeros(trajectories.tokens_BT.shape, jnp.float32)
    names = (*options.names, "values") if values else options.names
    nothing = dict.fromkeys(names, zeros_BT)
    segments_BT = trajectories.segment_ids_BT
    packed = packing is not None
    scores = fold(score, nothing, trajectories, segments_BT, microbatching, packed=packed)
    if packing is not None:
        scores = jax.tree.map(packing.unpack, scores)
    return jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (prompts.columns, 0))), scores)
