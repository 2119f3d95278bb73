"""The training loop: prompts, rollout, reward, advantage, update.

The loop does not depend on any algorithm, model or sampling engine. Everything that only observes
(logs, checkpoints, evaluations, sample tables) is a hook.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import jax

from rl4p.distributed.processes import to_host
from rl4p.errors import RunError
from rl4p.learner.gradient_step import gradient_step
from rl4p.loop.metrics import collection_metrics, measured, task_metrics
from rl4p.loop.phases import Phases
from rl4p.loop.sampler_gap import check_gap
from rl4p.loop.scoring import Scoring
from rl4p.loop.stopwatch import Stopwatch
from rl4p.model.policy import Policy
from rl4p.protocols.collection import OpenCollector, OpenSource, Stateful
from rl4p.protocols.hook import Hook
from rl4p.protocols.phases import Optimizer
from rl4p.types import Params, StepInfo, TrainingBatch, TrainState


@dataclass(frozen=True, kw_only=True)
class Loop:
    """The parts of a run, except its state.

    Attributes:
      steps: the total number of steps of the run.
      scoring: the computation of the scores that phases request.
      average_decay: the decay of the moving average of the parameters; 0 keeps none.
      max_skipped: the most consecutive steps that may skip an update with a non-finite gradient.
      term: the reward term that decides whether a response is right, for pass@1 by task.
    """

    policy: Policy
    phases: Phases
    source: OpenSource
    collector: OpenCollector
    optimizer: Optimizer
    group_size: int
    steps: int
    scoring: Scoring = field(default_factory=Scoring)
    average_decay: float = 0.0
    max_skipped: int = 5
    term: str | None = None

    @property
    def stateful(self) -> dict[str, Stateful]:
        """Returns the parts that are saved with the `TrainState`, in the order of restoring."""
        return {"source": self.source, "collector": self.collector}


def train(loop: Loop, state: TrainState) -> Iterator[StepInfo]:
    """Runs the loop from `state` to the last step and yields each step when it ends.

    The arrays of a state are donated to the next update: copy a state to keep it.

    Raises:
      RunError: the gradient was not finite in more than `max_skipped` steps in a row, or sampler
        and trainer disagree about the tokens (`check_gap`).
    """
    policy, phases, skipped = loop.policy, loop.phases, []
    objective = phases.objective(policy, loop.group_size)
    while (step := int(state.step)) < loop.steps:
        watch = Stopwatch()
        collected = loop.collector.collect(state)
        trajectories, rewards = collected.trajectories, collected.rewards

        with watch("scoring"):
            scores = loop.scoring(phases, policy, state, collected)
            coefficients = phases.coefficients(collected.memory, step)

        with watch("advantage"):
            estimated, memory = phases.estimate(
                collected.memory, trajectories, rewards, scores, coefficients["kl"]
            )
            metrics = collection_metrics(step, collected, estimated.advantages_BT)
            if len(loop.scoring.tasks) > 1:
                tasks_B = [episode.prompt.task for episode in collected.episodes]
                metrics |= task_metrics(tasks_B, rewards, loop.term)

        with watch("update"):
            batch = TrainingBatch(
                trajectories=trajectories,
                advantages_BT=estimated.advantages_BT,
                loss_mask_BT=estimated.loss_mask_BT,
                scores=estimated.for_update(scores),
            )
            phases.check("update", batch)
            # The state is donated without its memory, which may share arrays with `memory`.
            state, update_metrics = gradient_step(
                objective,
                loop.optimizer,
                policy.frozen,
                replace(state, memory={}),
                batch,
                coefficients,
            )
            update_metrics |= estimated.metrics
            memory = phases.adapt(memory, update_metrics)
            state = replace(state, step=state.step + 1, memory=memory)
            if loop.average_decay:
                average = averaged(state.average, state.params, loop.average_decay)
                state = replace(state, average=average)
            metrics |= measured(update_metrics)
            check_gap(phases.rollout, step, metrics, collected.episodes)

        skipped = [*skipped, step + 1] if metrics["update/skipped"] else []
        if len(skipped) > loop.max_skipped:
            raise RunError(f"The gradient was not finite in steps {skipped}: nothing was updated.")
        yield StepInfo(
            step=step + 1,
            state=state,
            trajectories=trajectories,
            episodes=collected.episodes,
            rewards=to_host(rewards),
            metrics=watch.metrics() | metrics,
            advantages_BT=batch.advantages_BT,
            loss_mask_BT=batch.loss_mask_BT,
        )


@partial(jax.jit, donate_argnames="average")
def averaged(average: Params, params: Params, decay: float) -> Params:
    """Returns the new moving average a <- a + (1 - decay) (params - a), in the dtype of a."""
    return jax.tree.map(lambda a, x: a + (1 - decay) * (x.astype(a.dtype) - a), average, params)


def run_hooks(hooks: Iterable[Hook], info: StepInfo, *, last: bool) -> StepInfo:
    """Calls the hooks that are due, in order; each receives the metrics of the earlier hooks."""
    for hook in hooks:
        if last or (hook.every > 0 and info.step % hook.every == 0):
            info = replace(info, metrics=info.metrics | (hook(info) or {}))
    return info
