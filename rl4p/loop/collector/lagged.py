"""A collector that samples with the parameters of an earlier step."""

from dataclasses import dataclass

from rl4p.base.errors import InputError
from rl4p.configuration.bounds import Natural
from rl4p.loop.collector.synchronous import OpenSynchronous
from rl4p.loop.synced_weights import SyncedWeights
from rl4p.model.policy import Policy
from rl4p.protocols.collection import CollectorPhases, OpenSource
from rl4p.protocols.traits import RolloutTraits


@dataclass(frozen=True, kw_only=True)
class Lagged:
    """Options of a synchronous collector whose samples are stale by an exact number of steps.

    The lag of `collector=asynchronous` depends on the speed of the machine. This one does not, so
    two runs agree in every digit. It is for studies of losses and corrections, not for speed.

    Attributes:
      lag: L; step n samples with the parameters at the start of step max(0, n - L). The devices and
        each checkpoint hold the parameters of L more steps.
    """

    lag: Natural = 1

    @property
    def fresh(self) -> bool:
        """Whether a step has tokens of its own weights."""
        return self.lag == 0

    def copies(self, shared: bool) -> int:
        """Returns the copies of the parameters on the training mesh."""
        return self.lag + 1

    def open(
        self,
        phases: CollectorPhases,
        policy: Policy,
        source: OpenSource,
        *,
        prompts_per_step: int,
        group_size: int,
    ) -> OpenSynchronous:
        if (every := RolloutTraits.read(phases.rollout).sync_every) > 1:
            raise InputError(
                f"rollout.sync_every={every} and collector=lagged both choose the weights that "
                "sample: set collector.lag, or choose collector=synchronous."
            )
        weights = SyncedWeights(phases.rollout, self.lag)
        return OpenSynchronous(phases, policy, source, prompts_per_step, group_size, weights)
