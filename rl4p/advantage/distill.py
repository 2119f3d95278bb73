"""On-policy distillation."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax.numpy as jnp

from rl4p.base.types import Array, Rewards, Trajectories
from rl4p.learner.advantage_options import AdvantageOptions
from rl4p.learner.masking import loss_mask


@dataclass(frozen=True, kw_only=True)
class Distill(AdvantageOptions):
    """On-policy distillation (2306.13649), per token:

        A_t = log pi_teacher - log pi_student, clamped to +-20

    A_t is the sampled estimate of minus the reverse KL of one token: later tokens do not affect it.
    The student is the policy that drew the token (`behaviour_logprobs_BT`), which needs no forward
    pass. The paper differentiates the divergence over the whole vocabulary instead. The clamp keeps
    A_t finite for a token that the teacher rules out (-inf).

    Rewards and groups are ignored, except that an invalid sample gets 0. A token on which teacher
    and student agree gets exactly 0.
    """

    needs = frozenset({"teacher_logprobs"})
    reads_total = False

    def __call__(
        self, trajectories: Trajectories, rewards: Rewards, *, scores: Mapping[str, Array]
    ) -> Array:
        difference_BT = scores["teacher_logprobs"] - trajectories.behaviour_logprobs_BT
        mask_BT = loss_mask(trajectories, rewards)
        return jnp.where(mask_BT, jnp.clip(difference_BT, -20.0, 20.0), 0.0)
