"""The protocols of sources, collectors, filters and transforms.

A source or a collector is configured like a tracker: a frozen dataclass holds its options, and
``open`` returns a live object. Options can be compared and written to YAML. Live objects hold
positions, buffers and threads; a checkpoint saves their ``state()``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from rl4p.base.serialization import Serializable
from rl4p.base.types import Array, Episode, Group, Params, Prompt, Rewards, TrainState, Trajectories
from rl4p.model.policy import Policy
from rl4p.protocols.phases import KL, Advantage, Reward, Rollout


class Stateful(Protocol):
    """An object whose state a checkpoint saves with the `TrainState`."""

    def state(self) -> dict[str, Any]:
        """Returns a tree of JSON values and host arrays."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Restores a state that `state` returned.

        Raises:
          InputError: the state belongs to another run.
        """
        ...


class Source(Protocol):
    """Options of a source, which selects the next prompts."""

    def open(self, prompts: Sequence[Prompt], *, seed: int) -> "OpenSource":
        """Returns the live source.

        Args:
          prompts: the prompts of the data set, in its order.
          seed: the seed of the run, the only randomness that the order may depend on.
        """
        ...


class OpenSource(Stateful, Protocol):
    """A live source: it returns prompts and receives their rewards."""

    def take(self, count: int, step: int) -> list[Prompt]:
        """Returns exactly `count` prompts for step `step`, counted from 0.

        A collector that runs ahead of training takes prompts before the credits of earlier steps.
        """
        ...

    def credit(self, step: int, episodes: Sequence[Episode], rewards: Rewards) -> None:
        """Receives responses and rewards of whole groups, also of groups that are not trained on.

        Args:
          step: the step that the groups were collected for.
          rewards: on the host; row b belongs to episode b.
        """
        ...

    def find(self, id: str) -> Prompt:
        """Returns the prompt with an id that `take` has returned.

        Raises:
          KeyError: the source has no such prompt.
        """
        ...


REPLAYED = "replay"  # `Prompt.drawn_by` of a prompt that a source repeats


@runtime_checkable
class Repeats(Protocol):
    """A live source that repeats earlier prompts, as ``drawn_by="replay"``.

    Attributes:
      repeated_share: the largest share of repeated prompts in a step. Collectors that reject groups
        keep to it with `loop/prompts.py`.
    """

    repeated_share: float

    def take(self, count: int, step: int, *, repeated: float = ...) -> list[Prompt]:
        """Returns exactly `count` prompts for step `step`, as `OpenSource.take` does.

        Args:
          repeated: the most prompts that are repeated. If it is not a whole number, chance rounds
            it up or down.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Collected(Serializable):
    """The result of a collector for one step.

    Attributes:
      memory: the memory of the phases after the collection.
      metrics: metrics of the collection. They include `time/rollout` and `time/reward` in seconds
        if these phases ran in this step.
    """

    trajectories: Trajectories
    episodes: Sequence[Episode]
    rewards: Rewards
    memory: dict[str, Any]
    metrics: dict[str, float]


class CollectorPhases(Protocol):
    """The phases of a run as a collector uses them (`loop/phases.py`)."""

    @property
    def rollout(self) -> Rollout: ...

    @property
    def reward(self) -> Reward: ...

    @property
    def advantage(self) -> Advantage: ...

    @property
    def kl(self) -> KL: ...

    def initial_memory(self) -> dict[str, Any]:
        """Returns the initial memory of each phase that has one, by phase name."""
        ...

    def sample(
        self,
        memory: dict[str, Any],
        policy: Policy,
        params: Params,
        prompts: Sequence[Prompt],
        *,
        group_size: int,
        key: Array,
        version: int,
        greedy: bool = False,
    ) -> tuple[tuple[Trajectories, Sequence[Episode]], dict[str, Any]]:
        """Calls the rollout; returns its result and the memory of all phases after the call."""
        ...

    def grade(
        self, memory: dict[str, Any], trajectories: Trajectories, episodes: Sequence[Episode]
    ) -> tuple[Rewards, dict[str, Any]]:
        """Calls the reward; returns the checked rewards and the memory of all phases after it."""
        ...

    def check(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Checks the result of a phase, if `debug.check_batches` is on."""
        ...


class Collector(Protocol):
    """Options of a collector, which turns prompts into the graded trajectories of a step.

    `traits.CollectorTraits` and `KeepsCopies` are what `rl4p.plan` asks of one that samples during
    updates or keeps copies of the parameters.
    """

    def open(
        self,
        phases: CollectorPhases,
        policy: Policy,
        source: OpenSource,
        *,
        prompts_per_step: int,
        group_size: int,
    ) -> "OpenCollector":
        """Returns the live collector, which calls the phases `rollout` and `reward`."""
        ...


@runtime_checkable
class KeepsCopies(Protocol):
    """Options of a collector that keeps copies of the trained parameters."""

    def copies(self, shared: bool) -> int:
        """Returns the number of copies on the training mesh.

        Args:
          shared: whether the devices of the training mesh sample too.
        """
        ...


class OpenCollector(Stateful, Protocol):
    """A live collector, which collects the trajectories of one step after another.

    It takes prompts from the source, and credits the source with their rewards.

    Its state holds the prompts that were taken but not trained on, so that a resumed run neither
    loses nor repeats prompts. It is {} if nothing outlives a step. The source is restored first.
    """

    def collect(self, state: TrainState) -> Collected:
        """Returns prompts_per_step x group_size graded trajectories for the step `state.step`.

        The arrays of `state` are donated to the update that follows. A collector that uses them
        afterwards copies them first (`jax.tree.map(jnp.copy, state.params)`).
        """
        ...

    def close(self) -> None:
        """Stops background work."""
        ...


class Transform(Protocol):
    """A pure function of graded groups, between the reward and the advantage.

    The groups are on the host. Every process calls it with all groups, so its result must depend on
    the group alone.
    """

    def __call__(self, group: Group) -> Group:
        """Returns the group to train on: as many samples, of as many tokens, in the same order.

        `Group.without` drops samples. Other changes are new rewards and smaller response masks.
        """
        ...


class Filter(Protocol):
    """A condition that groups must meet to be trained on; collectors call it after the rewards."""

    def __call__(self, group: Group) -> bool:
        """Returns whether to keep the group."""
        ...
