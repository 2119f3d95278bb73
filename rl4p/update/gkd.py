"""Distillation: a divergence from a teacher over the whole vocabulary."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from rl4p.base.types import Array, TrainingBatch
from rl4p.configuration.bounds import Natural, Share
from rl4p.learner.update_options import UpdateOptions


@dataclass(frozen=True, kw_only=True)
class GKD(UpdateOptions):
    """Generalised knowledge distillation (2306.13649), per token, over the whole vocabulary.

    With the teacher P, the policy Q and their mixture M = beta P + (1 - beta) Q:

        loss = KL(P || Q)                                     beta = 0, forward
        loss = beta KL(P || M) + (1 - beta) KL(Q || M)        0 < beta < 1, Jensen-Shannon
        loss = KL(Q || P)                                     beta = 1, reverse

    KL(P || Q) is the sum of P log(P / Q) over the vocabulary, at the temperature of the rollout,
    whose top-k, top-p and min-p do not cut P and Q. As beta nears 0, the middle line divided by
    beta nears the first; as beta nears 1, divided by 1 - beta, it nears the last. The gradient is
    that of the divergence at each token: the change of later tokens is left out, as in the paper.

    `rollout` decides which sequences are compared: samples of the policy (the paper's lambda = 1),
    or worked answers with `rollout=demonstrations` (lambda = 0). `collector.cache` replaces some
    samples by earlier ones. `advantage=distill` estimates the reverse divergence from the drawn
    token alone.

    Rewards and advantages are ignored. The paper's sum with a reward is left out.

    Attributes:
      beta: the divergence, from forward (0) to reverse (1).
      top_k: compares only the policy's k most probable tokens, and all others as one; 0 compares
        all. The result is a lower bound of the whole divergence, and not less work.
    """

    reads_advantages = False

    beta: Share = 1.0
    top_k: Natural = 0

    def divergence(self, logprobs_V: Array, teacher_V: Array) -> Array:
        """Returns the divergence of two distributions: [...] of log-probabilities [..., V]."""
        if 0 < self.top_k < logprobs_V.shape[-1]:
            ids_k = jax.lax.top_k(jax.lax.stop_gradient(logprobs_V), self.top_k)[1]
            logprobs_V, teacher_V = (with_one_rest(x, ids_k) for x in (logprobs_V, teacher_V))
        if self.beta == 0:
            return kl(teacher_V, logprobs_V)
        if self.beta == 1:
            return kl(logprobs_V, teacher_V)
        mixture_V = jnp.logaddexp(
            teacher_V + math.log(self.beta), logprobs_V + math.log1p(-self.beta)
        )
        return self.beta * kl(teacher_V, mixture_V) + (1 - self.beta) * kl(logprobs_V, mixture_V)

    def __call__(self, logprobs_BT: Array, batch: TrainingBatch) -> tuple[Array, dict[str, Array]]:
        return batch.scores["divergence"], {}


def kl(p_V: Array, q_V: Array) -> Array:
    """Returns sum p (log p - log q) of finite log-probabilities."""
    return jnp.sum(jnp.exp(p_V) * (p_V - q_V), axis=-1)


def with_one_rest(logprobs_V: Array, ids_k: Array) -> Array:
    """Returns log-probabilities [..., k + 1]: of the given tokens, and of all others together.

    The sum over the others keeps its precision where they are rare; 1 - sum_k would lose it.
    """
    others_V = jnp.put_along_axis(logprobs_V, ids_k, -jnp.inf, axis=-1, inplace=False)
    rest_1 = jax.nn.logsumexp(others_V, axis=-1, keepdims=True)
    return jnp.concatenate([jnp.take_along_axis(logprobs_V, ids_k, axis=-1), rest_1], axis=-1)
