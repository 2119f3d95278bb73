"""The metrics of a collected batch, and the check of the sampler's log-probabilities.

Rates and means are sums divided by counts. `reward/invalid` counts invalid samples that were not
dropped; the means of rewards leave out both. The mean of a term also leaves out the samples to
which it does not apply.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from rl4p.base.errors import RunError
from rl4p.base.types import Array, Episode, Finish, Metrics, Rewards, Trajectories
from rl4p.distributed.processes import to_host
from rl4p.learner.masking import group_statistics
from rl4p.protocols.collection import Collected
from rl4p.protocols.engine import HasMetrics, HoldsEpisodes
from rl4p.protocols.phases import Rollout
from rl4p.protocols.traits import RolloutTraits

compiled_statistics = jax.jit(group_statistics)  # one program; without it, each operation is one


def collection_metrics(step: int, collected: Collected, advantages_BT: Array) -> dict[str, float]:
    """Returns the metrics of the collection of `step`, of its batch and of its speed."""
    trajectories, rewards = collected.trajectories, collected.rewards
    metrics = batch_metrics(step, trajectories, rewards, advantages_BT) | collected.metrics
    metrics |= environment_metrics(collected.episodes)
    if seconds := metrics.get("time/rollout"):
        tokens = metrics["rollout/response_tokens"] * len(collected.episodes)
        metrics["rollout/tokens_per_second"] = tokens / seconds
    return metrics


def batch_metrics(
    step: int, trajectories: Trajectories, rewards: Rewards, advantages_BT: Array
) -> dict[str, float]:
    """Returns metrics of the trajectories of `step`: rewards, lengths, staleness in steps, ..."""
    group = compiled_statistics(rewards.total_B, rewards.valid_B, trajectories.group_ids_B)
    rewards, mask_BT, finish_B, version_BT, groups_B, equal_B, advantages_BT = to_host(
        (
            rewards,
            trajectories.response_mask_BT,
            trajectories.finish_B,
            trajectories.policy_version_BT,
            trajectories.group_ids_B,
            group.equal_B,
            advantages_BT,
        )
    )
    valid_B = rewards.valid_B
    counted = max(int(valid_B.sum()), 1)
    mean = float(rewards.total_B[valid_B].sum()) / counted
    variance = float(np.square(rewards.total_B[valid_B] - mean).sum()) / counted
    late = 0.0 if rewards.late_B is None else float(rewards.late_B.sum())
    dropped_B = np.zeros_like(valid_B) if rewards.dropped_B is None else rewards.dropped_B
    groups, first_B = np.unique(groups_B, return_index=True)
    first_B = first_B[np.isin(groups, groups_B[~dropped_B])]
    on_tokens = advantages_BT[mask_BT]
    version = version_BT[mask_BT]
    age = np.where(version < 0, 0, step - version)  # -1: no policy drew the token
    return {
        "reward/mean": mean,
        "reward/std": variance**0.5,
        **{f"reward/{name}": mean for name, mean in mean_grades(rewards).items()},
        "reward/invalid": float((~valid_B & ~dropped_B).sum()),
        **({"reward/late": late} if late else {}),
        **({"reward/dropped": float(dropped_B.sum())} if dropped_B.any() else {}),
        "rollout/response_tokens": float(mask_BT.sum()) / len(mask_BT),
        "rollout/truncated": float((finish_B == Finish.LENGTH).mean()),
        "advantage/zero_std_groups": float(equal_B[first_B].sum()) / max(len(first_B), 1),
        "advantage/mean": float(on_tokens.mean()) if on_tokens.size else 0.0,
        "advantage/max": float(np.abs(on_tokens).max()) if on_tokens.size else 0.0,
        "staleness/mean": float(age.mean()) if age.size else 0.0,
        "staleness/max": float(age.max()) if age.size else 0.0,
    }


def task_metrics(tasks_B: Sequence[str], rewards: Rewards, term: str | None) -> dict[str, float]:
    """Returns the metrics of the rewards by task, for the tasks in a batch.

    Args:
      term: the term that decides whether a response is right; without it there is no pass@1.
    """
    rewards, metrics = to_host(rewards), {}
    names_B = np.array(tasks_B)
    for task in sorted(set(tasks_B)):
        own = jax.tree.map(lambda x, rows_B=names_B == task: x[rows_B], rewards)
        dropped_B = False if own.dropped_B is None else own.dropped_B
        metrics[f"reward/{task}/invalid"] = float((~own.valid_B & ~np.asarray(dropped_B)).sum())
        if own.valid_B.any():
            metrics[f"reward/{task}/mean"] = float(own.total_B[own.valid_B].mean())
        metrics |= {f"reward/{task}/{name}": mean for name, mean in mean_grades(own).items()}
        if term in own.terms and (graded_B := own.graded(term)).any():
            right = float((own.terms[term][graded_B] >= 1).sum())
            metrics[f"reward/{task}/pass_at_1"] = right / int(graded_B.sum())
    return metrics


def measured(metrics: Metrics) -> dict[str, float]:
    """Returns the metrics of an update as numbers.

    The gap between sampler and trainer is left out if no token was drawn with the weights of this
    step, whose share is `rollout/fresh`.
    """
    numbers = {name: float(x) for name, x in to_host(metrics).items()}
    if not numbers.pop("rollout/fresh"):
        for name in ("rollout/logprob_gap_max", "rollout/logprob_gap_mean"):
            del numbers[name]
    return numbers


def staleness_shares(step: int, trajectories: Trajectories) -> dict[str, float]:
    """Returns the share of the tokens that are N steps old, as `staleness/share_N`.

    Args:
      trajectories: on the host; tokens that no policy drew do not count.
    """
    version_BT = trajectories.policy_version_BT
    ages, counts = np.unique(
        step - version_BT[trajectories.response_mask_BT & (version_BT >= 0)], return_counts=True
    )
    total = int(counts.sum())
    return {
        f"staleness/share_{age}": count / total
        for age, count in zip(ages.tolist(), counts.tolist(), strict=True)
    }


def drawn_shares(episodes: Sequence[Episode]) -> dict[str, float]:
    """Returns the share of prompts that a source drew on purpose, as `source/REPLAY`, by its name.

    The episodes are one of each group.
    """
    names = [episode.prompt.drawn_by for episode in episodes]
    drawn = sorted({name for name in names if name is not None})
    return {f"source/{name}": names.count(name) / len(names) for name in drawn}


def environment_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Returns the metrics of episodes of many turns; {} if no episode has turns.

    They are the mean numbers of turns and of segments, the mean tokens of a turn, the mean seconds
    that an episode waited for its environment, the share of episodes whose environment failed, also
    by the kind of the failure, and the mean over episodes of each number that the environment
    reported, and of the rewards of each role, summed over the turns.
    """
    if not any(episode.turns or episode.failure for episode in episodes):
        return {}
    sums, failures = Counter[str](), Counter[str]()
    turns = [turn for episode in episodes for turn in episode.turns]
    for turn in turns:
        sums.update({name: float(number) for name, number in turn.metrics.items()})
        if turn.role:
            sums.update({f"reward/{turn.role}": float(turn.reward)})
    for episode in episodes:
        if episode.failure is not None:  # it begins with the name of an exception, if it is one
            name, colon, _ = episode.failure.partition(":")
            failures[name if colon and name.isidentifier() else "other"] += 1
    means = {
        "turns": len(turns),
        "failed": failures.total(),
        **{f"failed/{kind}": count for kind, count in failures.items()},
        **sums,
    }
    if segments := sum(episode.segments for episode in episodes):
        means["segments"] = segments
    seconds = sum(turn.environment_seconds for turn in turns)
    return {f"environment/{name}": total / len(episodes) for name, total in means.items()} | {
        "environment/tokens_per_turn": sum(turn.tokens for turn in turns) / max(len(turns), 1),
        "time/environment_calls": seconds / len(episodes),
    }


def rollout_metrics(rollout: Any) -> dict[str, float]:
    """Returns what a rollout measured in its last call."""
    metrics = dict(rollout.metrics()) if isinstance(rollout, HasMetrics) else {}
    if isinstance(rollout, HoldsEpisodes):  # the times of the parts of its last call
        metrics |= {f"time/{name}": seconds for name, seconds in rollout.times().items()}
    return metrics


def reward_metrics(reward: Any) -> dict[str, float]:
    """Returns what a reward measured beside its grades, in this process, since the last call."""
    return dict(reward.metrics()) if isinstance(reward, HasMetrics) else {}


def mean_grades(rewards: Rewards) -> dict[str, float]:
    """Returns the mean of each term over the samples that it graded, if there are any."""
    means = {}
    for name, grade_B in rewards.terms.items():
        graded_B = rewards.graded(name)
        if count := int(graded_B.sum()):
            means[name] = float(grade_B[graded_B].sum()) / count
    return means


GAP = "rollout/logprob_gap_mean"
LARGEST_GAP = 0.05  # rollout.max_logprob_gap=auto


def check_gap(
    rollout: Rollout, step: int, metrics: Mapping[str, float], episodes: Sequence[Episode]
) -> None:
    """Checks `rollout/logprob_gap_mean` of a step against `rollout.max_logprob_gap`.

    The metric compares only tokens that claim the weights of this step, so a difference beyond
    rounding means that they were drawn from others.

    Args:
      step: the number of finished updates, which is the version of the weights.

    Raises:
      RunError: the gap is larger; names the engines and the version.
    """
    limit = RolloutTraits.read(rollout).max_logprob_gap
    limit = LARGEST_GAP if limit == "auto" else limit
    if limit is None or GAP not in metrics or metrics[GAP] <= limit:
        return
    engines = sorted({episode.engine for episode in episodes} - {""})
    who = " and ".join(engines) or f"The sampler ({type(rollout).__name__})"
    does = "do not sample" if len(engines) > 1 else "does not sample"
    raise RunError(
        f"{who} {does} from the weights of step {step} (version {step}): the log-probabilities of "
        f"the tokens in step {step + 1} differ from the trainer's by {metrics[GAP]:.3g} on average,"
        f" but rollout.max_logprob_gap={limit:g}."
    )
