"""The loop: take prompts, roll out, reward, advantage, update.

It knows no algorithm, no model and no engine by name. Everything that only looks on (logs,
checkpoints, evaluations, sample tables) is a hook.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import jax

from rl4p.data.stream import PromptStream
from rl4p.errors import RunError
from rl4p.metrics import batch_metrics
from rl4p.model.logprobs import score_logprobs
from rl4p.model.policy import Policy
from rl4p.phases import Phases
from rl4p.protocols import Collector, Hook, Optimizer
from rl4p.stopwatch import Stopwatch
from rl4p.types import Array, StepInfo, TrainingBatch, TrainState, Trajectories
from rl4p.update.gradient_step import gradient_step


@dataclass(frozen=True, kw_only=True)
class Loop:
    """What a run is made of, apart from its state.

    Attributes:
      steps: how many the run has in all.
      max_skipped: steps in a row that may hold a skipped update, for a gradient that is not finite.
    """

    policy: Policy
    phases: Phases
    collector: Collector
    optimizer: Optimizer
    prompts_per_step: int
    group_size: int
    steps: int
    max_skipped: int = 5


def train(loop: Loop, state: TrainState, stream: PromptStream) -> Iterator[StepInfo]:
    """Runs the loop from `state` to its last step, yielding every step as it ends.

    The state's arrays are given up to the update: whoever wants an old state must copy it.

    Raises:
      RunError: too many updates in a row were not finite.
    """
    policy, phases, skipped = loop.policy, loop.phases, []
    compute_advantages = jax.jit(phases.advantage)
    phases = replace(phases, advantage=compute_advantages)
    while (step := int(state.step)) < loop.steps:
        watch = Stopwatch()
        collected = loop.collector(
            phases,
            policy,
            state,
            stream,
            watch,
            prompts_per_step=loop.prompts_per_step,
            group_size=loop.group_size,
        )
        trajectories, rewards = collected.trajectories, collected.rewards

        with watch("advantage"):
            advantages_BT, memory = phases.call(
                "advantage", collected.memory, trajectories, rewards
            )
            metrics = batch_metrics(step, trajectories, rewards, advantages_BT)

        with watch("update"):
            batch = TrainingBatch(
                trajectories=trajectories,
                advantages_BT=advantages_BT,
                loss_mask_BT=trajectories.response_mask_BT & rewards.valid_B[:, None],
                scores=score(loop, state, trajectories),
            )
            # Its arrays are given up, and those of a memory that a phase left alone are in both.
            state = replace(state, memory={})
            state, update_metrics = gradient_step(
                phases.update,
                policy.decoder,
                phases.rollout.sampling,
                loop.optimizer,
                policy.frozen,
                state,
                batch,
            )
            state = replace(state, step=state.step + 1, memory=memory)
            metrics |= {name: float(x) for name, x in jax.device_get(update_metrics).items()}

        skipped = [*skipped, step + 1] if metrics["update/skipped"] else []
        if len(skipped) > loop.max_skipped:
            raise RunError(f"The gradient was not finite in steps {skipped}: nothing was updated.")
        metrics |= watch.metrics()
        tokens = metrics["rollout/response_tokens"] * len(collected.texts.responses)
        metrics["rollout/tokens_per_second"] = tokens / metrics["time/rollout"]
        yield StepInfo(
            step=step + 1,
            state=state,
            trajectories=trajectories,
            texts=collected.texts,
            rewards=rewards,
            metrics=metrics,
        )


def score(loop: Loop, state: TrainState, trajectories: Trajectories) -> dict[str, Array]:
    """The arrays that phases asked for in `needs`, and no others."""
    scorers = {
        "proximal_logprobs": lambda: score_logprobs(
            loop.policy.decoder,
            loop.policy.whole(state.params),
            trajectories,
            loop.phases.rollout.sampling,
            tokens_per_microbatch=loop.phases.update.tokens_per_microbatch,
        ),
    }
    return {name: scorers[name]() for name in sorted(loop.phases.needs())}


def run_hooks(hooks: Iterable[Hook], info: StepInfo, *, last: bool) -> StepInfo:
    """Calls the hooks whose turn it is, in order; each sees the metrics of those before it."""
    for hook in hooks:
        if last or (hook.every > 0 and info.step % hook.every == 0):
            info = replace(info, metrics=info.metrics | (hook(info) or {}))
    return info
