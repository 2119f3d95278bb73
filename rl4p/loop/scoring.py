"""The scores that phases request in `needs`, computed with as few forward passes as possible."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rl4p.base.errors import RunError
from rl4p.base.types import Array, Episode, Params, TrainState, Trajectories, Turn
from rl4p.data.pairs import margins
from rl4p.distributed.processes import to_host
from rl4p.learner.logprobs import score_tokens
from rl4p.learner.preferences import mismatched_log_ratios
from rl4p.loop.evaluation import final_answer, greedy_answers, judged
from rl4p.loop.phases import Phases
from rl4p.model.decoder import Decoder
from rl4p.model.policy import Policy
from rl4p.protocols.collection import Collected
from rl4p.protocols.traits import RolloutTraits

if TYPE_CHECKING:  # it brings the clients of servers, which few runs need
    from rl4p.loop.teacher import OwnTeacher, ServedTeacher

# The scores that one forward pass of the policy computes, with their names in `score_tokens`.
OF_POLICY = {
    "proximal_logprobs": "logprobs",
    "entropy": "entropy",
    "collision": "collision",
    "values": "values",
}


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """The computation of scores, and the models that it uses beside the policy."""

    # A decoder and the parameters of the reference; None if no phase requests their scores, or if
    # they are in the state (`TrainState.reference`).
    reference: tuple[Decoder, Params] | None = None
    # A decoder with the vocabulary of the policy, and its parameters; None without one.
    teacher: tuple[Decoder, Params] | None = None
    # In place of a teacher with a decoder of its own. `Scoring.close` ends its connections.
    other_teacher: "OwnTeacher | ServedTeacher | None" = None
    tasks: tuple[str, ...] = ()  # the names of the tasks in the training data, sorted
    # The reward term whose grades are `right`, and whose extraction finds `answer_clusters`.
    term: str = "correct"

    def __call__(
        self, phases: Phases, policy: Policy, state: TrainState, collected: Collected
    ) -> dict[str, Array]:
        """Returns the scores that `Phases.needs` lists, by name."""
        needs = phases.needs()
        trajectories, episodes = collected.trajectories, collected.episodes
        options = phases.score_options(policy)
        temperature = phases.temperature(int(state.step))
        scores: dict[str, Array] = {}
        policy_scores = sorted(needs & OF_POLICY.keys())
        if policy_scores:
            computed = score_tokens(
                replace(
                    options,
                    names=tuple(OF_POLICY[name] for name in policy_scores),
                    values=phases.values if "values" in needs else None,
                ),
                policy.merged(state.params),
                trajectories,
                **temperature,
            )
            scores |= {name: computed[OF_POLICY[name]] for name in policy_scores}
        others: dict[str, Any] = {
            "reference_logprobs": (
                (policy.decoder, policy.merged(state.reference))
                if state.reference
                else self.reference
            ),
            "teacher_logprobs": self.teacher,
        }
        if self.other_teacher is not None:
            reference = others["reference_logprobs"]
            scores["teacher_logprobs"] = self.other_teacher.scores(
                policy, state, reference, options, collected, **temperature
            )
            del others["teacher_logprobs"]
        for name in sorted(needs & others.keys()):
            decoder, params = others[name]
            own_options = replace(options, decoder=decoder)
            own = replace(trajectories, experts_BTX=None)  # those of the policy
            computed = score_tokens(own_options, params, own, **temperature)
            scores[name] = computed["logprobs"]
        if "mismatched_log_ratios" in needs:
            models = (policy.decoder, policy.merged(state.params)), others["reference_logprobs"]
            scores["mismatched_log_ratios"] = mismatched_log_ratios(
                options, *models, trajectories, **temperature
            )
        for name in sorted(needs & phases.scores.keys()):
            score_BT = phases.scores[name](policy, state, trajectories, episodes, collected.rewards)
            scores[name] = policy.mesh.shard_rows(score_BT)
        row_scores = {
            "greedy_rewards": lambda: baselines(phases, policy, state, episodes),
            "answer_clusters": lambda: answer_clusters(episodes, phases.reward, self.term),
            "task_ids": lambda: task_ids(episodes, self.tasks),
            "right": lambda: np.asarray(judged(collected.rewards, self.term)[0]),
            "margins": lambda: margins([each.prompt for each in episodes]),
            "turn_states": lambda: turn_states(trajectories, episodes),
            "turn_roles": lambda: turn_roles(
                trajectories, episodes, RolloutTraits.read(phases.rollout).roles
            ),
        }
        for name in sorted(needs & row_scores.keys()):
            scores[name] = policy.mesh.shard_rows(row_scores[name]())
        return scores

    def close(self) -> None:
        """Closes the connections to the servers of a teacher."""
        if self.other_teacher is not None:
            self.other_teacher.close()


def baselines(
    phases: Phases, policy: Policy, state: TrainState, episodes: Sequence[Episode]
) -> np.ndarray:
    """Returns the total reward of a greedy response to each prompt: float32 [B], nan if invalid."""
    prompts = list({each.prompt.id: each.prompt for each in episodes}.values())
    rows = len(prompts) + -len(prompts) % policy.mesh.row_shards
    *_, rewards = greedy_answers(phases, policy, state.params, state, prompts, rows=rows)
    total, valid = to_host((rewards.total_B, rewards.valid_B))
    by_id = {prompt.id: total[row] if valid[row] else np.nan for row, prompt in enumerate(prompts)}
    return np.asarray([by_id[each.prompt.id] for each in episodes], np.float32)


def answer_clusters(episodes: Sequence[Episode], reward: Any, term: str) -> np.ndarray:
    """Returns int32 [B], equal for responses with equal final answers, or with none.

    The term says where the final answer stands (`evaluation.final_answer`).
    """
    keys = [final_answer(each.response, each.prompt, reward, term) for each in episodes]
    order = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    return np.asarray([order[key] for key in keys], np.int32)


def task_ids(episodes: Sequence[Episode], tasks: Sequence[str]) -> np.ndarray:
    """Returns int32 [B], the index of each row's task in `tasks`."""
    return np.asarray([tasks.index(each.prompt.task) for each in episodes], np.int32)


def turn_roles(
    trajectories: Trajectories, episodes: Sequence[Episode], roles: Sequence[str]
) -> np.ndarray:
    """Returns int32 [B, T]: on each turn the index of its role in `roles`; elsewhere 0."""
    mask_BT = to_host(trajectories.response_mask_BT)
    numbers_BT = np.zeros(mask_BT.shape, np.int32)
    for row, episode in enumerate(episodes):
        chosen = np.flatnonzero(mask_BT[row])
        for turn, place in zip(episode.turns, episode.turn_places, strict=True):
            numbers_BT[row, chosen[place]] = roles.index(turn.role)
    return numbers_BT


def turn_states(trajectories: Trajectories, episodes: Sequence[Episode]) -> np.ndarray:
    """Returns int32 [B, T]: on each turn a number that the turns of a group in its state share.

    The state before the first turn is what the policy reads there; before a later one, `Turn.state`
    of the turn before. A state without a name equals no other. Elsewhere the result is 0.

    Raises:
      RunError: no state of the batch has a name, although there are episodes of several turns.
    """
    mask_BT, ids_B = to_host((trajectories.response_mask_BT, trajectories.group_ids_B))
    if not any(turn.state is not None for each in episodes for turn in each.turns[:-1]) and any(
        len(each.turns) > 1 for each in episodes
    ):
        raise RunError(
            "The advantage compares turns that begin in the same state, but the environment gives "
            "no state a name (StepResult.state): choose another advantage."
        )
    order: dict[Any, int] = {}
    numbers_BT = np.zeros(mask_BT.shape, np.int32)
    for row, episode in enumerate(episodes):
        opening = episode.opening or episode.prompt.prompt_messages()
        before: Any = json.dumps(opening, sort_keys=True, default=str)
        chosen = np.flatnonzero(mask_BT[row])
        turns = episode.turns or (Turn(text="", tokens=len(chosen)),)
        places = episode.turn_places or [slice(None)]
        for number, (turn, place) in enumerate(zip(turns, places, strict=True)):
            unnamed = number > 0 and before is None
            key = (int(ids_B[row]), number == 0, before, (row, number) if unnamed else None)
            numbers_BT[row, chosen[place]] = order.setdefault(key, len(order))
            before = turn.state
    return numbers_BT
