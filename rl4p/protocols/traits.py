"""What the loop and the planner ask of the parts of a run, and the check of their members.

Traits are the optional members of a part, with the default of a part that lacks them. A part of a
user's own defines only the traits that differ from the default. Optional methods are protocols
(here for planning, and in `phases.py`, `engine.py` and `collection.py`), which `isinstance`
recognizes.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, Literal, Protocol, Self, runtime_checkable

from rl4p.base.errors import InputError


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
      max_logprob_gap: the largest `rollout/logprob_gap_mean` of a step; None for no limit, and
        `auto` for 0.05 in steps that have the metric.
      annealing: the change of the temperature over the run; None for none.
      sync_every: the number of steps between two changes of the weights that sample.
      sleep: whether its servers give memory back while an update runs.
      many_turns: whether a row may have several turns of the policy.
      roles: the names of the agents of an episode; empty for a single one without a name.
      alternatives: how many of the most probable tokens it records with each drawn token, for an
        update that centers scores.
      replay_support: whether the trainer normalises over the tokens that could be drawn.
      recorded: how many tokens it records with each drawn token, for either.
      dtype: the dtype of the weights that sample; `auto` for that of the model.
    """

    samples: bool = True
    pairs: bool = False
    trains: bool = True
    max_logprob_gap: float | Literal["auto"] | None = None
    annealing: Any = None
    sync_every: int = 1
    sleep: bool = False
    many_turns: bool = False
    roles: Sequence[str] = ()
    alternatives: int = 0
    replay_support: bool = False
    recorded: int = 0
    dtype: str = "auto"


@dataclass(frozen=True, kw_only=True)
class RewardTraits(PhaseTraits):
    """The traits of a reward.

    Attributes:
      whole_groups: whether the samples of a group are never divided between processes.
      terms: the terms by name; None if it has no named terms.
      tasks: the reward of each task by name; None if it grades all tasks alike.
      pairs: whether it grades only the pairs of a rollout with the same trait.
      labels: whether it grades only responses of the data set, which have labels.
    """

    whole_groups: bool = False
    terms: Mapping[str, Any] | None = None
    tasks: Mapping[str, Any] | None = None
    pairs: bool = False
    labels: bool = False


@dataclass(frozen=True, kw_only=True)
class TermTraits(PhaseTraits):
    """The traits of a reward term.

    Attributes:
      weight: the factor of its grades in the total reward.
      whole_groups: whether it is called with groups (`reward.GroupTerm`).
      extract: where it finds the final answer of a response (`data/extraction.py`).
      reads_answer: whether it compares with the reference answer, which every prompt then needs.
      has_model: whether it runs a model on the devices, which `rl4p.plan` must know.
    """

    weight: float | None = None
    whole_groups: bool = False
    extract: Any = "hashes"
    reads_answer: bool = False
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
      reads_signs: whether of the advantages it only reads which samples are good and which are bad,
        of which no policy needs to have drawn any.
      trains_score: whether it trains the score of a sequence, of a model with a score head.
      pack: whether several sequences share a row.
      old_policy: `behaviour` if the ratio of the loss is the whole importance weight.
      router_loss: the coefficient of the load-balancing loss of experts.
      router_bias_rate: how far the bias of each expert moves against its load.
      likelihood_loss: the coefficient of the likelihood of right samples.
      observation_loss: the coefficient of the likelihood of what the environment said.
    """

    reads_advantages: bool = True
    whole_groups: bool = False
    reads_signs: bool = False
    trains_score: bool = False
    pack: bool = False
    old_policy: str | None = None
    router_loss: float = 0.0
    router_bias_rate: float = 0.0
    likelihood_loss: float = 0.0
    observation_loss: float = 0.0


@dataclass(frozen=True, kw_only=True)
class CorrectionTraits(PhaseTraits):
    """The traits of a correction.

    Attributes:
      active: false if every token has weight 1.
      weighs: whether its weights contain the ratio of trainer and sampler.
      reads_batch: whether it also takes `logprobs_BT` and `batch`, as an update does, in which are
        the scores that it needs.
      reads_advantages: whether it acts on tokens with negative advantages alone.
      by_token: whether the weight of a token depends on its own ratio alone.
    """

    active: bool = True
    weighs: bool = False
    reads_batch: bool = False
    reads_advantages: bool = False
    by_token: bool = False


@dataclass(frozen=True, kw_only=True)
class PenaltyTraits(PhaseTraits):
    """The traits of a KL penalty.

    Attributes:
      importance_weight: whether it weighs the estimate by the ratio of trainer and sampler.
      against: `behaviour` if the reference is the policy that sampled.
    """

    importance_weight: bool = False
    against: str = "reference"


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


@dataclass(frozen=True, kw_only=True)
class PlannedProgram:
    """A traced function of a rollout, which its method `plan` describes.

    Attributes:
      phase: the name of the function in the plan.
      traced: the function, traced by JAX from shapes with shardings.
      live: the shapes of all arrays on the devices while it runs, its arguments included.
      iterations: the number of iterations of a loop whose trip count is not static.
      read: the least bytes that each device reads; None if it reads every argument once.
    """

    phase: str
    traced: Any
    live: Any
    iterations: int = 1
    read: float | None = None


@runtime_checkable
class Planned(Protocol):
    """A rollout that `rl4p.plan` can plan. The plan leaves out other rollouts, and says so."""

    def plan(self, run: Any) -> Generator[PlannedProgram, Any, None]:
        """Yields the programs of a call, in their order, on the sampling mesh.

        Each ``yield`` returns the results of that program as shapes with shardings, or None if the
        compiler found that the program cannot fit.

        Args:
          run: an `experiment.planning.abstract.AbstractRun`: the policy, and all shapes at
            their maximum.
        """
        ...

    def slots_of(self, sequences: int) -> int | None:
        """Returns how many of a step's sequences are decoded at a time, by the option `slots`.

        Returns None if there is no such option; the plan then neither searches nor suggests it.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class CacheSize:
    """The size of a cache of keys and values.

    Attributes:
      rows: the number of its rows, which the devices divide.
      columns: the number of its columns, one for each token.
      shared: whether it has prompts that a decode step reads once for all their samples.
      kv_cache_dtype: the dtype of keys and values, `auto` or `int8` (`Decoder`).
    """

    rows: int
    columns: int
    shared: bool = False
    kv_cache_dtype: str = "auto"


@runtime_checkable
class KeepsCaches(Protocol):
    """A rollout that keeps the keys and values of its sequences on the devices of the run."""

    def caches(self, run: Any) -> Sequence[CacheSize]:
        """Returns the caches that are on the devices at the same time at most; none on servers.

        Args:
          run: as in `Planned.plan`.
        """
        ...


def require(part: Any, contract: type, key: str) -> None:
    """Checks that a part of a run has every member of its protocol.

    Args:
      contract: a protocol of `rl4p.protocols`.
      key: the configuration key of the part.

    Raises:
      InputError: a member is missing, or it is not a method where the protocol has one.
    """
    kind = type(part)
    for name, is_method in required_members(contract).items():
        if callable(getattr(part, name, None)) if is_method else hasattr(part, name):
            continue
        raise InputError(
            f"{key}: the class {kind.__module__}.{kind.__qualname__} has no "
            f"{'method' if is_method else 'attribute'} {name}, but "
            f"{contract.__module__}.{contract.__qualname__} requires it: add it to the class."
        )


def required_members(contract: type) -> dict[str, bool]:
    """Returns the names of the members of a protocol, and for each whether it is a method."""
    members: dict[str, bool] = {}
    for base in contract.__mro__:
        if base in (Protocol, Generic, object):
            continue
        members |= dict.fromkeys(vars(base).get("__annotations__", {}), False)
        members |= {name: callable(member) for name, member in vars(base).items()}
    return {
        name: is_method
        for name, is_method in members.items()
        if name == "__call__" or not name.startswith("_")
    }
