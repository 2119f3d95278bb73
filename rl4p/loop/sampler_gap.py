"""The check that sampler and trainer agree about the log-probabilities of fresh tokens."""

from collections.abc import Mapping, Sequence

from rl4p.base.errors import RunError
from rl4p.base.types import Episode
from rl4p.protocols.phases import Rollout
from rl4p.protocols.traits import RolloutTraits

GAP = "rollout/logprob_gap_mean"


def check_gap(
    rollout: Rollout, step: int, metrics: Mapping[str, float], episodes: Sequence[Episode]
) -> None:
    """Checks `rollout/logprob_gap_mean` of a step against `rollout.max_logprob_gap`.

    The metric compares only tokens that claim the weights of this step, so a difference beyond
    rounding means that they were drawn from others.

    Args:
      step: the number of finished updates, which is the version of the weights.

    Raises:
      RunError: the gap is larger; names the engines and the version.
    """
    limit = RolloutTraits.read(rollout).max_logprob_gap
    if limit is None or GAP not in metrics or metrics[GAP] <= limit:
        return
    engines = sorted({episode.engine for episode in episodes} - {""})
    who = " and ".join(engines) or f"The sampler ({type(rollout).__name__})"
    does = "do not sample" if len(engines) > 1 else "does not sample"
    raise RunError(
        f"{who} {does} from the weights of step {step} (version {step}): the log-probabilities of "
        f"the tokens in step {step + 1} differ from the trainer's by {metrics[GAP]:.3g} on average,"
        f" but rollout.max_logprob_gap={limit:g}."
    )
