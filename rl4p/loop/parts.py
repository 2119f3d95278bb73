"""The parts of a run that its steps use."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rl4p.loop.phases import Phases
from rl4p.loop.scoring import Scoring
from rl4p.model.policy import Policy
from rl4p.protocols.collection import OpenCollector, OpenSource, Stateful, Transform
from rl4p.protocols.phases import Optimizer


@dataclass(frozen=True, kw_only=True)
class Loop:
    """The parts of a run, except its state.

    Attributes:
      steps: the total number of steps of the run.
      scoring: the computation of the scores that phases request.
      reset_reference_every: the number of steps after which the policy becomes the reference; 0
        never.
      average_decay: the decay of the moving average of the parameters; 0 keeps none.
      max_skipped: the most consecutive steps that may skip an update with a non-finite gradient.
      term: the reward term that decides whether a response is right, for pass@1 by task.
      transforms: changes of the graded groups by name, in their order.
    """

    policy: Policy
    phases: Phases
    source: OpenSource
    collector: OpenCollector
    optimizer: Optimizer
    group_size: int
    steps: int
    scoring: Scoring = field(default_factory=Scoring)
    reset_reference_every: int = 0
    average_decay: float = 0.0
    max_skipped: int = 5
    term: str | None = None
    transforms: Mapping[str, Transform] = field(default_factory=dict)

    @property
    def stateful(self) -> dict[str, Stateful]:
        """Returns the parts that are saved with the `TrainState`, in the order of restoring."""
        return {"source": self.source, "collector": self.collector}
