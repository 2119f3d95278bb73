"""Traits: the optional members of the parts of a run, with the default of a part that lacks them.

A part of a user's own defines only the traits that differ from the default. Optional methods are
protocols (`phases.py`, `engine.py`, `collection.py`), which `isinstance` recognizes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self


@dataclass(frozen=True, kw_only=True)
class Traits:
    """The optional members that a part of a run has."""

    @classmethod
    def read(cls, part: Any) -> Self:
        """Returns the traits of a part."""
        return cls(**{each.name: getattr(part, each.name, each.default) for each in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class PhaseTraits(Traits):
    """The traits of any phase and of any reward term.

    Attributes:
      needs: the names of the scores that it requests.
    """

    needs: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class RolloutTraits(PhaseTraits):
    """The traits of a rollout.

    Attributes:
      samples: whether a policy samples the tokens; false for demonstrations.
      pairs: whether a group is the preferred and the rejected response of a preference pair.
      trains: whether it samples from the policy that is trained and returns its log-probabilities.
      max_logprob_gap: the largest `rollout/logprob_gap_mean` of a step; None for no limit.
      annealing: the change of the temperature over the run; None for none.
      sync_every: the number of steps between two changes of the weights that sample.
      sleep: whether its servers give memory back while an update runs.
      many_turns: whether a row may have several turns of the policy.
    """

    samples: bool = True
    pairs: bool = False
    trains: bool = True
    max_logprob_gap: float | None = None
    annealing: Any = None
    sync_every: int = 1
    sleep: bool = False
    many_turns: bool = False


@dataclass(frozen=True, kw_only=True)
class RewardTraits(PhaseTraits):
    """The traits of a reward.

    Attributes:
      whole_groups: whether the samples of a group are never divided between processes.
      terms: the terms by name; None if it has no named terms.
      tasks: the reward of each task by name; None if it grades all tasks alike.
      pairs: whether it grades only the pairs of a rollout with the same trait.
    """

    whole_groups: bool = False
    terms: Mapping[str, Any] | None = None
    tasks: Mapping[str, Any] | None = None
    pairs: bool = False


@dataclass(frozen=True, kw_only=True)
class TermTraits(PhaseTraits):
    """The traits of a reward term.

    Attributes:
      weight: the factor of its grades in the total reward.
      whole_groups: whether it is called with groups (`reward.GroupTerm`).
      extract: where it finds the final answer of a response (`data/extraction.py`).
      has_model: whether it runs a model on the devices, which `rl4p.plan` must know.
    """

    weight: float | None = None
    whole_groups: bool = False
    extract: Any = "hashes"
    has_model: bool = False


@dataclass(frozen=True, kw_only=True)
class AdvantageTraits(PhaseTraits):
    """The traits of an advantage (`learner/advantage_options.py`).

    Attributes:
      clip: clips the advantages to [-clip, clip]; 0 disables clipping.
      mask_truncated: whether samples that the token limit cuts off are invalid.
      reads_total: whether it uses the total reward.
      compares_group: whether a sample gets 0 if its siblings have the same reward.
      one_sign: whether no two advantages have opposite signs.
      uniform: whether all advantages are equal.
      reads_turns: whether rows of one turn make it the same as another advantage.
      value: the advantage of every sample, if it is an option.
    """

    clip: float = 0.0
    mask_truncated: bool = False
    reads_total: bool = True
    compares_group: bool = False
    one_sign: bool = False
    uniform: bool = False
    reads_turns: bool = False
    value: float = 1.0


@dataclass(frozen=True, kw_only=True)
class UpdateTraits(PhaseTraits):
    """The traits of an update (`learner/update_options.py`).

    Attributes:
      reads_advantages: whether the loss uses the advantages.
      whole_groups: whether the loss compares the samples of a group, which is then never divided.
      pack: whether several sequences share a row.
      old_policy: `behaviour` if the ratio of the loss is the whole importance weight.
      ratio_options: the names of the options that act only where the ratio is not 1, so not in the
        first update of a step with `old_policy=proximal`.
    """

    reads_advantages: bool = True
    whole_groups: bool = False
    pack: bool = False
    old_policy: str | None = None
    ratio_options: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class CorrectionTraits(PhaseTraits):
    """The traits of a correction.

    Attributes:
      active: false if every token has weight 1.
      weighs: whether its weights contain the ratio of trainer and sampler.
    """

    active: bool = True
    weighs: bool = False


@dataclass(frozen=True, kw_only=True)
class PenaltyTraits(PhaseTraits):
    """The traits of a KL penalty.

    Attributes:
      importance_weight: whether it weighs the estimate by the ratio of trainer and sampler.
    """

    importance_weight: bool = False


@dataclass(frozen=True, kw_only=True)
class OptimizerTraits(Traits):
    """The traits of an optimizer.

    Attributes:
      offload: whether its state stays in the memory of the host between updates.
    """

    offload: bool = False


@dataclass(frozen=True, kw_only=True)
class CollectorTraits(Traits):
    """The traits of the options of a collector.

    Attributes:
      overlaps: whether it samples during updates, which `rl4p.plan` must know.
      fresh: whether the weights of a step may have drawn tokens of it, after the first step.
    """

    overlaps: bool = False
    fresh: bool = True


@dataclass(frozen=True, kw_only=True)
class FilterTraits(Traits):
    """The traits of a filter.

    Attributes:
      fewest_samples: the size of the smallest group that it can keep.
    """

    fewest_samples: int = 1
