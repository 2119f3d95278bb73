"""The loop: take prompts, roll out, reward, advantage, update.

It knows no algorithm, no model and no engine by name. Everything that only looks on (logs,
checkpoints, evaluations, sample tables) is a hook.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import jax

from rl4p.distributed.processes import to_host
from rl4p.errors import RunError
from rl4p.learner.gradient_step import gradient_step
from rl4p.loop.estimate import estimate
from rl4p.loop.metrics import batch_metrics
from rl4p.loop.phases import Phases
from rl4p.loop.protocols import Hook, OpenCollector, OpenSource, Stateful
from rl4p.loop.scoring import Scoring
from rl4p.loop.stopwatch import Stopwatch
from rl4p.model.policy import Policy
from rl4p.protocols import Optimizer
from rl4p.types import Params, StepInfo, TrainingBatch, TrainState


@dataclass(frozen=True, kw_only=True)
class Loop:
    """What a run is made of, apart from its state.

    Attributes:
      steps: how many the run has in all.
      scoring: what scores refer to, beside the policy.
      average_decay: of the moving average of the parameters; 0 keeps none.
      max_skipped: steps in a row that may hold a skipped update, for a gradient that is not finite.
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

    @property
    def stateful(self) -> dict[str, Stateful]:
        """Returns what a checkpoint holds beside the `TrainState`, in the order of restoring it."""
        return {"source": self.source, "collector": self.collector}


def train(loop: Loop, state: TrainState) -> Iterator[StepInfo]:
    """Runs the loop from `state` to its last step, yielding every step as it ends.

    The state's arrays are given up to the update: whoever wants an old state must copy it.

    Raises:
      RunError: too many updates in a row were not finite.
    """
    policy, phases, skipped = loop.policy, loop.phases, []
    objective = phases.objective(loop.group_size)
    compiled = jax.jit(partial(estimate, phases.advantage, phases.kl))
    phases = replace(phases, advantage=compiled)
    while (step := int(state.step)) < loop.steps:
        watch = Stopwatch()
        collected = loop.collector.collect(state)
        trajectories, rewards = collected.trajectories, collected.rewards

        with watch("scoring"):
            scores = loop.scoring(loop.phases, policy, state, collected)
            coefficients = phases.coefficients(collected.memory)

        with watch("advantage"):
            estimated, memory = phases.call(
                "advantage", collected.memory, trajectories, rewards, scores, coefficients["kl"]
            )
            metrics = batch_metrics(step, trajectories, rewards, estimated.advantages_BT)

        with watch("update"):
            batch = TrainingBatch(
                trajectories=trajectories,
                advantages_BT=estimated.advantages_BT,
                loss_mask_BT=estimated.loss_mask_BT,
                scores=estimated.for_update(scores),
            )
            phases.check("update", batch)
            # Its arrays are given up, and those of a memory that a phase left alone are in both.
            state, update_metrics = gradient_step(
                objective,
                policy.decoder,
                phases.rollout.sampling,
                loop.optimizer,
                policy.frozen,
                replace(state, memory={}),
                batch,
                coefficients,
                policy.mesh,
            )
            update_metrics |= estimated.metrics
            memory = phases.adapt(memory, update_metrics)
            state = replace(state, step=state.step + 1, memory=memory)
            if loop.average_decay:
                average = averaged(state.average, state.params, loop.average_decay)
                state = replace(state, average=average)
            metrics |= {name: float(x) for name, x in to_host(update_metrics).items()}

        skipped = [*skipped, step + 1] if metrics["update/skipped"] else []
        if len(skipped) > loop.max_skipped:
            raise RunError(f"The gradient was not finite in steps {skipped}: nothing was updated.")
        metrics |= watch.metrics() | collected.metrics
        if seconds := metrics.get("time/rollout"):
            tokens = metrics["rollout/response_tokens"] * len(collected.texts.responses)
            metrics["rollout/tokens_per_second"] = tokens / seconds
        rewards = to_host(rewards)
        loop.source.credit(step, collected.texts, rewards)
        yield StepInfo(
            step=step + 1,
            state=state,
            trajectories=trajectories,
            texts=collected.texts,
            rewards=rewards,
            metrics=metrics,
        )


@partial(jax.jit, donate_argnames="average")
def averaged(average: Params, params: Params, decay: float) -> Params:
    """The moving average of the parameters: a <- a + (1 - decay) (params - a), in a's dtype."""
    return jax.tree.map(lambda a, x: a + (1 - decay) * (x.astype(a.dtype) - a), average, params)


def run_hooks(hooks: Iterable[Hook], info: StepInfo, *, last: bool) -> StepInfo:
    """Calls the hooks whose turn it is, in order; each sees the metrics of those before it."""
    for hook in hooks:
        if last or (hook.every > 0 and info.step % hook.every == 0):
            info = replace(info, metrics=info.metrics | (hook(info) or {}))
    return info
