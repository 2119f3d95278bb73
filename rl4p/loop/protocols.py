"""The contracts of what stands around the phases: sources, collectors and hooks.

Sources and collectors are configured as trackers and checkpoints are: a frozen dataclass of options
whose ``open`` returns a live object. Options are compared and written to YAML. Live objects hold
positions, buffers and threads; ``state()`` is what a checkpoint keeps of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rl4p.loop.phases import Phases
from rl4p.model.policy import Policy
from rl4p.types import Prompt, Rewards, StepInfo, Texts, TrainState, Trajectories


class Stateful(Protocol):
    """What a checkpoint keeps beside the `TrainState`."""

    def state(self) -> dict[str, Any]:
        """Returns JSON values, and host arrays, at any depth."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on where the state was taken.

        Raises:
          InputError: this run is not the one that it was taken in.
        """
        ...


class Source(Protocol):
    """Options that say which prompts come next."""

    def open(self, prompts: Sequence[Prompt], *, seed: int) -> "OpenSource":
        """Returns the live source.

        Args:
          prompts: those of the data set, in its order.
          seed: of the run; the order of prompts may depend on nothing else that is random.
        """
        ...


class OpenSource(Stateful, Protocol):
    """Gives out prompts, and learns what became of them."""

    def take(self, count: int, step: int) -> list[Prompt]:
        """Returns exactly `count` prompts for the step of this number, counted from 0."""
        ...

    def credit(self, step: int, texts: Texts, rewards: Rewards) -> None:
        """Learns the responses and rewards that a step was trained on, as soon as it has ended.

        Args:
          rewards: on the host; row b belongs to row b of `texts`.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Collected:
    """What a collector gives the loop for one step.

    Attributes:
      memory: of the phases, after these trajectories were collected.
      metrics: of the collection, `time/rollout` and `time/reward` among them where the phases ran
        in this step; seconds.
    """

    trajectories: Trajectories
    texts: Texts
    rewards: Rewards
    memory: dict[str, Any]
    metrics: dict[str, float]


class Collector(Protocol):
    """Options that say how prompts become the graded trajectories of a step."""

    def open(
        self,
        phases: Phases,
        policy: Policy,
        source: OpenSource,
        *,
        prompts_per_step: int,
        group_size: int,
    ) -> "OpenCollector":
        """Returns the live collector, which drives the phases `rollout` and `reward`."""
        ...


class OpenCollector(Stateful, Protocol):
    """Collects the trajectories of one step after the other.

    Its state holds prompts that were taken and not trained on yet, so that a run that goes on loses
    none and repeats none; {} if nothing outlives a step. The source is restored before it.
    """

    def collect(self, state: TrainState) -> Collected:
        """Returns prompts_per_step x group_size graded trajectories for the step `state.step`.

        The arrays of `state` are donated to the update that follows. A collector that samples with
        them later copies them first (`jax.tree.map(jnp.copy, state.params)`).
        """
        ...

    def close(self) -> None:
        """Ends what runs in the background."""
        ...


class Hook(Protocol):
    """A side effect after every `every`-th step of the loop, and after the last."""

    @property
    def every(self) -> int: ...

    def __call__(self, info: StepInfo) -> dict[str, float] | None:
        """Returns metrics to add to those of the step, for the hooks after this one."""
        ...
