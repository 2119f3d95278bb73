"""The policy gradient without the drift towards the sampler."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from rl4p.base.types import Array, TrainingBatch
from rl4p.learner.update_options import UpdateOptions

LEAST_REST = 1e-6  # of a mass that float32 cannot tell from 0: 1 - sum


@dataclass(frozen=True, kw_only=True)
class ScoreCentering(UpdateOptions):
    """REINFORCE with centered scores (2609.20807), per token, to minimise:

        -A (w(pi / mu) log pi - sum_v c_v log pi_v)
        c_v = mu_v w(pi_v / mu_v) - alpha w(1 / alpha) pi_v
        alpha = (1 - sum_v mu_v) / (1 - sum_v pi_v)

    The sampler mu draws with other kernels, another precision or older weights than the policy pi.
    Then the expected score, sum_v mu_v grad log pi_v, is not 0, and A moves pi towards mu without
    regard to the reward. The sum over v subtracts it. It has the sampler's most probable tokens
    (`rollout.alternatives`; the paper takes 128). For the other tokens, mu is taken to be alpha pi.
    The numbers c and w have no gradient. Where pi = mu, the sum is 0: plain REINFORCE.

    w is the weight that `correction` gives a token by its own ratio: 1 for none, min(w, cap) for
    token_truncate, also as part of a product. Weights of sequences multiply the whole loss of a
    token. With several updates in a step, pi is the policy of the update, also in w.
    """

    @property
    def needs(self) -> frozenset[str]:
        """Returns the scores that the options need: w has the policy of each update."""
        return super().needs - {"proximal_logprobs"}

    def expected_score(
        self, logprobs_A: Array, behaviour_A: Array, weigh: Callable[[Array], Array]
    ) -> Array:
        """Returns the sum of c_v log pi_v over A tokens (`protocols.Centers`)."""
        constant_A = jax.lax.stop_gradient(logprobs_A)
        known_A = jnp.isfinite(constant_A) & jnp.isfinite(behaviour_A)
        p_A, q_A = (jnp.where(known_A, jnp.exp(x), 0.0) for x in (constant_A, behaviour_A))
        rests = (jnp.maximum(1 - jnp.sum(x, -1), LEAST_REST) for x in (q_A, p_A))
        log_alpha = jnp.log(next(rests)) - jnp.log(next(rests))
        log_ratio_A = jnp.where(known_A, constant_A - behaviour_A, 0.0)
        rest = jnp.exp(log_alpha) * weigh(-log_alpha)
        c_A = q_A * weigh(log_ratio_A) - rest[..., None] * p_A
        return jnp.sum(c_A * jnp.where(known_A, logprobs_A, 0.0), axis=-1)

    def __call__(self, logprobs_BT: Array, batch: TrainingBatch) -> tuple[Array, dict[str, Array]]:
        return -batch.advantages_BT * logprobs_BT, {}
