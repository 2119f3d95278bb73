"""The parts of a run that its steps use, and the training batch of a step."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.base.types import Array, Episode, Metrics, Params, Rewards, TrainingBatch, TrainState
from rl4p.distributed.placement import return_freed_memory
from rl4p.distributed.processes import to_host
from rl4p.learner.objective import Objective
from rl4p.loop.metrics import collection_metrics, reward_metrics, task_metrics
from rl4p.loop.phases import Memory, Phases
from rl4p.loop.scoring import Scoring
from rl4p.loop.stopwatch import Stopwatch
from rl4p.loop.transform import transformed
from rl4p.model.policy import Policy
from rl4p.protocols.collection import OpenCollector, OpenSource, Stateful, Transform
from rl4p.protocols.phases import Optimizer

Tree = TypeVar("Tree")


@dataclass(frozen=True, kw_only=True)
class Loop:
    """The parts of a run, except its state."""

    policy: Policy
    phases: Phases
    source: OpenSource
    collector: OpenCollector
    optimizer: Optimizer
    group_size: int
    steps: int  # the total number of steps of the run
    # The computation of the scores that phases request.
    scoring: Scoring = field(default_factory=Scoring)
    # The number of steps after which the policy becomes the reference; 0 never.
    reset_reference_every: int = 0
    average_decay: float = 0.0  # the decay of the moving average of the parameters; 0 keeps none
    # The most consecutive steps that may skip an update with a non-finite gradient.
    max_skipped: int = 5
    # The reward term that decides whether a response is right, for pass@1 by task.
    term: str | None = None
    # Changes of the graded groups by name, in their order.
    transforms: Mapping[str, Transform] = field(default_factory=dict)

    @property
    def objective(self) -> Objective:
        """The objective of the gradient step, a static argument of its compilation."""
        return self.phases.objective(self.policy, self.group_size, self.scoring.teacher)

    @property
    def frozen(self) -> Params:
        """The parameters that the gradient step reads beside the trained ones."""
        return self.phases.frozen(self.policy, self.scoring.teacher)

    @property
    def stateful(self) -> dict[str, Stateful]:
        """Returns the parts that are saved with the `TrainState`, in the order of restoring."""
        return {"source": self.source, "collector": self.collector}


@dataclass(frozen=True, kw_only=True)
class RolloutBatch:
    """The training batch of a step, and what else a step needs."""

    batch: TrainingBatch  # the input of the update
    # The coefficients of the loss, for `gradient_step` or `forward_backward`.
    coefficients: dict[str, Array]
    # episodes, rewards: of the rows of the batch
    episodes: Sequence[Episode]
    rewards: Rewards
    memory: Memory  # the memory of the phases after the advantage phase
    # The metrics of the collection and the batch, with the times of the phases.
    metrics: dict[str, float]
    penalty: Metrics  # the metrics of a KL penalty in the reward, on the devices

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
    return_freed_memory(policy.mesh.platform)
    with watch("scoring"):
        scores = loop.scoring(phases, policy, state, collected)
        phases.free()  # a score may sample greedy responses
        coefficients = phases.coefficients(collected.memory, step)

    with watch("advantage"):
        order_BT = time_order(to_host(trajectories.response_mask_BT), collected.episodes)
        if order_BT is not None:  # advantages read the turns in the order of time
            order_BT = policy.mesh.shard_rows(order_BT)
        estimated, memory = phases.estimate(
            collected.memory,
            reordered(trajectories, order_BT),
            reordered(rewards, order_BT),
            reordered(scores, order_BT),
            coefficients["kl"],
        )
        if order_BT is not None:
            estimated = reordered(estimated, jnp.argsort(order_BT, axis=1))
        metrics = collection_metrics(step, collected, estimated.advantages_BT)
        metrics |= reward_metrics(phases.reward)
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


def time_order(mask_BT: np.ndarray, episodes: Sequence[Episode]) -> np.ndarray | None:
    """Returns the columns of each row in the order of time: int32 [B, T].

    A row has the segments of an episode one after the other. The result has its turns as they
    ended, each after a column of a token that the policy did not choose, which separates it from
    the turn before. Other columns come first. Returns None if all rows are in the order of time.
    """
    rows = [b for b, x in enumerate(episodes) if any(turn.start is not None for turn in x.turns)]
    if not rows:
        return None
    B, T = mask_BT.shape
    order_BT = np.tile(np.arange(T, dtype=np.int32), (B, 1))
    for row in rows:
        chosen, others = np.flatnonzero(mask_BT[row]), np.flatnonzero(~mask_BT[row]).tolist()
        in_time = [
            column
            for place in episodes[row].turn_places
            for column in (*([others.pop()] if others else []), *chosen[place].tolist())
        ]
        if len(others) + len(in_time) == T:  # no part of the loop has changed the mask
            order_BT[row] = [*others, *in_time]
    return order_BT


def reordered(tree: Tree, order_BT: Array | None) -> Tree:
    """Returns a tree whose arrays [B, T] have their columns in another order, which may be None."""
    return tree if order_BT is None else _reordered(tree, order_BT)


@jax.jit
def _reordered(tree: Any, order_BT: Array) -> Any:
    return jax.tree.map(
        lambda x: jnp.take_along_axis(x, order_BT, 1) if x.shape == order_BT.shape else x, tree
    )


def rollout_batches(
    loop: Loop, state: TrainState
) -> Generator[RolloutBatch, TrainState | None, None]:
    """Yields one training batch after the other, without end.

    `next` goes on with the same weights, and `send(state)` with the state after an update, whose
    `step` the caller has advanced.
    """
    while True:
        rollout = rollout_batch(loop, state)
        sent = yield rollout
        state = rollout.skipped(state) if sent is None else sent
