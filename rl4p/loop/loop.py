"""The training loop: prompts, rollout, reward, advantage, update.

The loop does not depend on any algorithm, model or sampling engine. Everything that only observes
(logs, checkpoints, evaluations, sample tables) is a hook.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp

from rl4p.base.errors import RunError
from rl4p.base.types import Params, TrainState
from rl4p.distributed.placement import as_before, device_memory
from rl4p.distributed.processes import to_host
from rl4p.learner.gradient_step import gradient_step, gradient_step_in_halves
from rl4p.loop.batches import Loop, rollout_batch
from rl4p.loop.metrics import check_gap, measured
from rl4p.loop.stopwatch import Stopwatch, clock, doing
from rl4p.protocols.hook import Hook, StepInfo
from rl4p.protocols.traits import OptimizerTraits


def train(loop: Loop, state: TrainState) -> Iterator[StepInfo]:
    """Runs the loop from `state` to the last step and yields each step when it ends.

    The arrays of a state are donated to the next update: copy a state to keep it.

    Raises:
      RunError: the gradient was not finite in more than `max_skipped` steps in a row, sampler and
        trainer disagree about the tokens (`check_gap`), or the state was donated to an update.
    """
    state.check_not_donated()
    phases, skipped = loop.phases, []
    objective, frozen = loop.objective, loop.frozen
    offload = OptimizerTraits.read(loop.optimizer).offload
    run_updates = gradient_step_in_halves if offload else gradient_step
    while (step := int(state.step)) < loop.steps:
        watch = Stopwatch()
        rollout = rollout_batch(loop, state)
        metrics = rollout.metrics

        with watch("update"):
            # The state is donated without its memory, which may share arrays with the batch's.
            reference = state.reference
            state, update_metrics = run_updates(
                objective,
                loop.optimizer,
                frozen,
                replace(state, memory={}, reference={}),
                rollout.batch,
                rollout.coefficients,
            )
            update_metrics |= rollout.penalty
            memory = phases.adapt(rollout.memory, update_metrics)
            every = loop.reset_reference_every
            if every and (step + 1) % every == 0:
                newest = jax.tree.map(jnp.copy, {x: state.params[x] for x in reference})
                reference = as_before(newest, reference)
            state = replace(state, step=state.step + 1, memory=memory, reference=reference)
            if loop.average_decay:
                average = averaged(state.average, state.params, loop.average_decay)
                state = replace(state, average=average)
            metrics |= measured(update_metrics)
            check_gap(phases.rollout, step, metrics, rollout.episodes)

        skipped = [*skipped, step + 1] if metrics["update/skipped"] else []
        if len(skipped) > loop.max_skipped:
            raise RunError(f"The gradient was not finite in steps {skipped}: nothing was updated.")
        yield StepInfo(
            step=step + 1,
            state=state,
            trajectories=rollout.batch.trajectories,
            episodes=rollout.episodes,
            rewards=to_host(rollout.rewards),
            metrics=watch.metrics() | metrics | device_memory(),
            advantages_BT=rollout.batch.advantages_BT,
            loss_mask_BT=rollout.batch.loss_mask_BT,
        )


@partial(jax.jit, donate_argnames="average")
def averaged(average: Params, params: Params, decay: float) -> Params:
    """Returns the new moving average a <- a + (1 - decay) (params - a), in the dtype of a."""
    return jax.tree.map(lambda a, x: a + (1 - decay) * (x.astype(a.dtype) - a), average, params)


def run_hooks(hooks: Iterable[Hook], info: StepInfo, *, last: bool) -> StepInfo:
    """Calls the hooks that are due, in order; each receives the metrics of the earlier hooks."""
    for hook in hooks:
        if last or (hook.every > 0 and info.step % hook.every == 0):
            with doing(type(hook).__name__.lower(), clock()):
                info = replace(info, metrics=info.metrics | (hook(info) or {}))
    return info
