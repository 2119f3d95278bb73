"""Returns, whitened over the batch."""

from dataclasses import dataclass

from rl4p.base.types import Array, Rewards, Trajectories
from rl4p.configuration.bounds import AboveZero
from rl4p.learner.advantage_options import AdvantageOptions
from rl4p.learner.masking import loss_mask, returns_to_go, whiten


@dataclass(frozen=True, kw_only=True)
class ReinforcePP(AdvantageOptions):
    """REINFORCE++ (2501.03262), per token:

        R_t = sum over s >= t of r_s
        A_t = (R_t - mean) / (std + epsilon), over the response tokens of the batch's valid samples

    r_s is the reward of a token (`Rewards.tokens_BT`: a KL penalty), and the last token receives
    the rest of the reward. The mean is over tokens, so long responses weigh more; the deviation
    divides by the number of tokens. Returns are not discounted.

    The baseline is the batch's, and groups are ignored. A batch whose returns are all equal gets
    exactly 0, a group of equal rewards does not. An invalid sample gets 0.

    Attributes:
      epsilon: added to the deviation.
    """

    epsilon: AboveZero = 1e-4

    def __call__(self, trajectories: Trajectories, rewards: Rewards) -> Array:
        returns_BT = returns_to_go(trajectories, rewards)
        return whiten(returns_BT, loss_mask(trajectories, rewards), epsilon=self.epsilon)
