"""The objective of a gradient step, and the loss that it gives each token of a microbatch."""

import math
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp

from rl4p.base.errors import RunError
from rl4p.base.types import Array, Params, Sampling, TrainingBatch, Trajectories
from rl4p.distributed.mesh import Mesh
from rl4p.learner.correction import by_token, correction_weights
from rl4p.learner.logprobs import (
    ForwardRows,
    SamplerRows,
    TeacherRows,
    TokenScores,
    token_scores,
    trunk,
    trunk_and_load,
)
from rl4p.learner.phase_results import check_array, check_names, check_pair
from rl4p.model import heads
from rl4p.model.decoder import Decoder
from rl4p.model.router import RouterLoad
from rl4p.protocols.phases import (
    KL,
    Centers,
    Correction,
    Critic,
    Distils,
    Entropy,
    Estimator,
    Update,
)
from rl4p.protocols.traits import PenaltyTraits, UpdateTraits


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The policy loss and the terms added to it, for one policy on one mesh.

    It is static: the gradient step is compiled for it.

    Attributes:
      decoder: the decoder of the policy.
      sampling: the distribution that the tokens were drawn from.
      mesh: the mesh whose devices share the rows.
      rows_together: how many rows of one group stay in one minibatch and one microbatch.
      teacher: the decoder of the teacher that the update compares with; None without one. Its
        parameters are under `teacher` beside the frozen ones (`Phases.frozen`).
      pad_id: the token that fills rows, after the last one that a score head reads.
    """

    update: Update
    correction: Correction
    kl: KL
    entropy: Entropy
    critic: Critic
    decoder: Decoder
    sampling: Sampling
    mesh: Mesh
    rows_together: int = 1
    teacher: Decoder | None = None
    pad_id: int = 0

    @property
    def router_loss(self) -> float:
        """The coefficient of the load-balancing loss (`router.balance_loss`)."""
        return UpdateTraits.read(self.update).router_loss

    @property
    def router_bias_rate(self) -> float:
        """How far the biases of experts move in an update (`router.balanced`)."""
        return UpdateTraits.read(self.update).router_bias_rate

    @property
    def counts_load(self) -> bool:
        """Whether it matters what the routers do with each token."""
        return bool(self.router_loss or self.router_bias_rate)


def token_loss(
    objective: Objective,
    params: Params,
    micro: TrainingBatch,
    coefficients: dict[str, Array],
    rows: ForwardRows | None = None,
) -> tuple[Array, dict[str, Array], RouterLoad | None]:
    """Returns the loss of each token of a microbatch, and its metrics: [B, T], valid on the mask.

    The loss is w (policy loss) + beta KL - alpha H + value loss, with w the correction. The third
    result is what the routers do, if it matters (`Objective.counts_load`).

    Args:
      coefficients: beta as `kl` and alpha as `entropy`; `temperature`, if it changes over the run;
        `step`, whose tokens alone count for `logprob_gap`.
      rows: the rows that the trunk runs; None for those of the microbatch. With a critic, they are
        those of the microbatch.
    """
    mask, trajectories = micro.loss_mask_BT, micro.trajectories
    decoder, temperature = objective.decoder, coefficients.get("temperature")

    def on_mask(x_BT: Array) -> Array:
        # Padding may hold -inf (a token outside the support). Remove it before any arithmetic.
        return jnp.where(mask, x_BT, 0.0)

    rows = ForwardRows(trajectories) if rows is None else rows
    load, inputs = None, (decoder, params, rows.trajectories, rows.before)
    if objective.counts_load:
        hidden_BTD, load = trunk_and_load(*inputs)
    else:
        hidden_BTD = trunk(*inputs)
    score_BT = None
    if decoder.config.labels:  # a score in place of the log-probabilities, which are 0
        score_BT = heads.scores(params, hidden_BTD)[..., 0]
        scores = TokenScores(*(jnp.zeros_like(score_BT),) * 3)
    else:
        beside = rows_beside(objective, params, rows.trajectories)
        scores = token_scores(
            decoder, params, hidden_BTD, rows.trajectories, objective.sampling, temperature, beside
        )
    # From here on, a row is a sequence again.
    unpack = (lambda x: x) if rows.packing is None else rows.packing.unpack
    tokens: TokenScores = jax.tree.map(unpack, scores)
    if score_BT is not None:
        own_BT = heads.at_last_token(unpack(score_BT), trajectories, objective.pad_id)
        micro = replace(micro, scores=micro.scores | {"sequence_score": own_BT})
    logprobs_BT = on_mask(tokens.logprobs_BT)
    constant_BT = jax.lax.stop_gradient(logprobs_BT)
    proximal_BT = on_mask(micro.scores.get("proximal_logprobs", constant_BT))
    micro = replace(micro, scores=micro.scores | {"proximal_logprobs": proximal_BT})
    if tokens.compared_BT is not None and objective.teacher is not None:
        micro = replace(micro, scores=micro.scores | {"divergence": on_mask(tokens.compared_BT)})
    loss_BT, extras = policy_loss(objective.update, logprobs_BT, micro)

    # Tokens that no policy drew have no behaviour log-probabilities.
    sampled = mask & (trajectories.policy_version_BT >= 0)
    # Centered scores have the policy of the update in w, of drawn tokens as of the others.
    current_BT = constant_BT if isinstance(objective.update, Centers) else proximal_BT
    mismatch_BT = jnp.where(sampled, current_BT - trajectories.behaviour_logprobs_BT, 0.0)
    loss_BT *= correction_weights(objective.correction, mismatch_BT, constant_BT, micro)
    if isinstance(objective.update, Centers) and tokens.compared_BT is not None:
        centered_BT = micro.advantages_BT * jnp.where(sampled, tokens.compared_BT, 0.0)
        for part in by_token(objective.correction)[1]:
            centered_BT *= correction_weights(part, mismatch_BT, constant_BT, micro)
        loss_BT += centered_BT
    if objective.entropy.selects:
        loss_BT = jnp.where(micro.scores["selected"], loss_BT, 0.0)
    if objective.entropy.active:
        loss_BT = loss_BT - coefficients["entropy"] * tokens.entropy_BT
    if objective.kl.active and objective.kl.placement == "in_loss":
        behaviour_BT = jnp.where(sampled, trajectories.behaviour_logprobs_BT, constant_BT)
        behaviour_BT = reference_BT = on_mask(behaviour_BT)
        if PenaltyTraits.read(objective.kl).against == "reference":
            reference_BT = on_mask(micro.scores["reference_logprobs"])
        divergence_BT = objective.kl.penalty(logprobs_BT, reference_BT, behaviour_BT)
        loss_BT = loss_BT + coefficients["kl"] * divergence_BT
        extras = extras | {"kl": divergence_BT}
    if objective.critic.active and isinstance(objective.critic, Estimator):
        values_BT = on_mask(objective.critic.values(decoder, params, hidden_BTD, trajectories))
        returns_BT, old_values_BT = (on_mask(micro.scores[x]) for x in ("returns", "values"))
        value_loss_BT = objective.critic.loss(values_BT, old_values_BT, returns_BT)
        loss_BT = loss_BT + value_loss_BT
        extras = extras | {
            "value_loss": value_loss_BT,
            "returns": returns_BT,
            "squared_returns": jnp.square(returns_BT),
            "squared_value_errors": jnp.square(returns_BT - values_BT),
        }

    if "imitation" in micro.scores:  # also of tokens outside the mask (`with_likelihood`)
        factor_BT = micro.scores["imitation"]
        likelihood_BT = jnp.where(factor_BT > 0, tokens.logprobs_BT, 0.0)
        imitation_BT = -factor_BT * likelihood_BT
        loss_BT = on_mask(loss_BT) + imitation_BT
        extras = extras | {"imitation_loss": imitation_BT}

    # Other tokens differ from the sampler because the policy has changed since.
    fresh = sampled
    if "step" in coefficients:
        fresh &= trajectories.policy_version_BT == coefficients["step"]
    log_ratio_BT = constant_BT - proximal_BT
    weight_BT = jnp.exp(jnp.clip(mismatch_BT, -20.0, 20.0))
    metrics = {
        "entropy": tokens.entropy_BT,
        "approx_kl": jnp.expm1(jnp.clip(log_ratio_BT, -20.0, 20.0)) - log_ratio_BT,
        "logprob_gap": jnp.where(fresh, jnp.abs(mismatch_BT), 0.0),
        "fresh": fresh,
        "mismatch_kl": weight_BT - 1 - mismatch_BT,
        "weight": weight_BT,
        "squared_weight": jnp.square(weight_BT),
    }
    return loss_BT, metrics | extras, load


def rows_beside(
    objective: Objective, params: Params, trajectories: Trajectories
) -> TeacherRows | SamplerRows | None:
    """Returns what the update compares each token of a microbatch with, or None.

    That is a teacher, which runs over the rows here, or the sampler's most probable tokens.
    """
    teacher, update = objective.teacher, objective.update
    if isinstance(update, Centers):
        tokens_BTA = trajectories.alternatives_BTA
        logprobs_BTA = trajectories.alternative_logprobs_BTA
        if tokens_BTA is None or logprobs_BTA is None:
            raise RunError(
                "These samples were not recorded with the sampler's most probable tokens, which "
                "the update centers with: begin a new run."
            )
        own = by_token(objective.correction)[0]

        def weigh(log_ratio: Array) -> Array:
            everywhere = jnp.ones(log_ratio.shape, bool)
            return math.prod(
                (part(log_ratio, everywhere) for part in own), start=jnp.ones_like(log_ratio)
            )

        return SamplerRows(tokens_BTA, logprobs_BTA, partial(update.expected_score, weigh=weigh))
    if teacher is None or not isinstance(update, Distils):
        return None
    own = replace(trajectories, experts_BTX=None)  # those of the policy
    hidden_BTD = trunk(teacher, params["teacher"], own)
    return TeacherRows(teacher, teacher.head(params["teacher"]), hidden_BTD, update.divergence)


def policy_loss(
    update: Update, logprobs_BT: Array, micro: TrainingBatch
) -> tuple[Array, dict[str, Array]]:
    """Calls the update, and checks what it returns while the call is traced."""
    shape = logprobs_BT.shape
    result = update(logprobs_BT, micro)
    loss_BT, extras = check_pair("update", update, result, "(loss_BT, metrics)")
    check_array("update", update, "loss_BT", loss_BT, shape)
    for name, values_BT in check_names("update", update, "the metrics", extras).items():
        check_array("update", update, f"the metric {name}", values_BT, shape, kinds="bif")
    return loss_BT, extras


def with_likelihood(
    update: UpdateTraits, batch: TrainingBatch, weights_BT: Array
) -> tuple[TrainingBatch, Array]:
    """Adds the likelihood terms of a minibatch, before it is split.

        loss + likelihood_loss mean over tokens of right samples of -log pi        (2504.05118)
             + observation_loss mean over observed tokens of -log pi               (2605.24517)

    ``batch.scores["imitation"]`` is then the factor of -log pi in the loss of a token, and observed
    tokens are scored as those of a response are.

    Args:
      weights_BT: the weight of each token in the loss (`aggregation_weights`).

    Returns:
      The batch, and the weights with those of observed tokens, which are 0 before.
    """
    mask_BT, factor_BT = batch.loss_mask_BT, jnp.zeros(weights_BT.shape, jnp.float32)
    trajectories = batch.trajectories
    if update.likelihood_loss:
        right_BT = mask_BT & (batch.scores["right"].astype(bool)[:, None])
        share = update.likelihood_loss / jnp.maximum(jnp.sum(right_BT, dtype=jnp.float32), 1)
        factor_BT = jnp.where(right_BT, share / jnp.where(right_BT, weights_BT, 1.0), 0.0)
    if update.observation_loss:
        observed_BT = observed(trajectories) & jnp.any(mask_BT, axis=1, keepdims=True)
        share = update.observation_loss / jnp.maximum(jnp.sum(observed_BT, dtype=jnp.float32), 1)
        factor_BT = jnp.where(observed_BT, 1.0, factor_BT)
        weights_BT = jnp.where(observed_BT, share, weights_BT)
        scored_BT = trajectories.response_mask_BT | observed_BT
        trajectories = replace(trajectories, response_mask_BT=scored_BT)
    scores = batch.scores | {"imitation": factor_BT}
    return replace(batch, trajectories=trajectories, scores=scores), weights_BT


def observed(t: Trajectories) -> Array:
    """Returns the tokens that no policy chose after the first response of their segment: [B, T].

    They are what an environment said, with the markers of messages around it.
    """
    columns = jnp.arange(t.tokens_BT.shape[1])
    before_BT = jnp.pad(t.segment_ids_BT[:, :-1], ((0, 0), (1, 0)))
    begins_BT = jnp.where(t.segment_ids_BT != before_BT, columns, 0)
    chosen_BT = jnp.where(t.response_mask_BT, columns, -1)
    begin_BT, last_BT = (jax.lax.cummax(x, axis=1) for x in (begins_BT, chosen_BT))
    return (t.segment_ids_BT != 0) & ~t.response_mask_BT & (last_BT >= begin_BT)
