"""The training batch of a step: collection, transforms, scores and advantage."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

from rl4p.base.types import Array, Episode, Metrics, Rewards, TrainingBatch, TrainState
from rl4p.loop.metrics import collection_metrics, task_metrics
from rl4p.loop.parts import Loop
from rl4p.loop.phases import Memory
from rl4p.loop.stopwatch import Stopwatch
from rl4p.loop.transform import transformed


@dataclass(frozen=True, kw_only=True)
class RolloutBatch:
    """The training batch of a step, and what else a step needs.

    Attributes:
      batch: the input of the update.
      coefficients: the coefficients of the loss, for `gradient_step` or `forward_backward`.
      episodes, rewards: of the rows of the batch.
      memory: the memory of the phases after the advantage phase.
      metrics: the metrics of the collection and the batch, with the times of the phases.
      penalty: the metrics of a KL penalty in the reward, on the devices.
    """

    batch: TrainingBatch
    coefficients: dict[str, Array]
    episodes: Sequence[Episode]
    rewards: Rewards
    memory: Memory
    metrics: dict[str, float]
    penalty: Metrics

    def skipped(self, state: TrainState) -> TrainState:
        """Returns the state of the next step with the same weights, without an update."""
        return replace(state, step=state.step + 1, memory=self.memory)


def rollout_batch(loop: Loop, state: TrainState) -> RolloutBatch:
    """Samples and grades the trajectories of a step, and returns its training batch.

    Raises:
      RunError: the buffers of the state were donated, or a part of the loop fails.
    """
    state.check_not_donated()
    policy, phases, step = loop.policy, loop.phases, int(state.step)
    watch = Stopwatch()
    collected = loop.collector.collect(state)
    if loop.transforms:
        with watch("transforms"):
            collected = transformed(loop.transforms, policy, collected)
    trajectories, rewards = collected.trajectories, collected.rewards

    phases.free()  # scores and updates may need the memory
    with watch("scoring"):
        scores = loop.scoring(phases, policy, state, collected)
        phases.free()  # a score may sample greedy responses
        coefficients = phases.coefficients(collected.memory, step)

    with watch("advantage"):
        estimated, memory = phases.estimate(
            collected.memory, trajectories, rewards, scores, coefficients["kl"]
        )
        metrics = collection_metrics(step, collected, estimated.advantages_BT)
        if len(loop.scoring.tasks) > 1:
            tasks_B = [episode.prompt.task for episode in collected.episodes]
            metrics |= task_metrics(tasks_B, rewards, loop.term)
        batch = TrainingBatch(
            trajectories=trajectories,
            advantages_BT=estimated.advantages_BT,
            loss_mask_BT=estimated.loss_mask_BT,
            scores=estimated.for_update(scores),
        )
        phases.check("update", batch)
    return RolloutBatch(
        batch=batch,
        coefficients=coefficients,
        episodes=collected.episodes,
        rewards=rewards,
        memory=memory,
        metrics=watch.times() | metrics,
        penalty=estimated.metrics,
    )


def rollout_batches(
    loop: Loop, state: TrainState
) -> Generator[RolloutBatch, TrainState | None, None]:
    """Yields one training batch after the other, without end.

    `next` goes on with the same weights, and `send(state)` with the state after an update, whose
    `step` the caller has advanced.

    Raises:
      RunError: as `rollout_batch`.
    """
    while True:
        rollout = rollout_batch(loop, state)
        sent = yield rollout
        state = rollout.skipped(state) if sent is None else sent
