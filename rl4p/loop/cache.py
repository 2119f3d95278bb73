"""A cache of right samples, replayed as demonstrations in groups that have none."""

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.types import Array, Finish, Group, Rewards
from rl4p.configuration.bounds import Positive
from rl4p.protocols.collection import CollectorPhases
from rl4p.protocols.traits import AdvantageTraits, RolloutTraits

EPISODES = (
    "collector.cache needs samples of one prompt and one response, but this rollout has episodes "
    "of many turns, in which others answer the policy: leave the cache out."
)


@dataclass(frozen=True, kw_only=True)
class SuccessCache:
    """Options of a cache with the shortest right sample of each prompt so far.

    If no sample of a group is right, but the cache has one for its prompt, it replaces the last
    sample of the group, with its grades. Its tokens have no weight version and no behaviour
    log-probabilities, as in a demonstration, so corrections leave them alone. Prompts must
    come again for the cache to act: in a second epoch or by `source=replay`.

    A sample is a prompt and one response. Episodes are refused: what answered the policy in them
    may be another world the next time.

    Attributes:
      capacity: the most prompts in the cache; those that were right longest ago leave first.
      term: the reward term that is at least 1 for a right sample; None for the total reward.
    """

    capacity: Positive = 4096
    term: str | None = "correct"

    def open(self, phases: CollectorPhases) -> "OpenSuccessCache":
        """Returns the live cache."""
        if RolloutTraits.read(phases.rollout).many_turns:
            raise InputError(EPISODES)
        if phases.kl.active and phases.kl.placement == "in_reward":
            raise InputError(
                "collector.cache has samples without log-probabilities of a sampling policy, but "
                "kl.placement=in_reward needs them: set kl.placement=in_loss."
            )
        if "teacher_logprobs" in AdvantageTraits.read(phases.advantage).needs:
            raise InputError(
                "collector.cache has samples without log-probabilities of a sampling policy, which "
                "the advantage compares with a teacher: leave the cache out."
            )
        return OpenSuccessCache(self)


class Solution(NamedTuple):
    """A right sample."""

    tokens: np.ndarray  # int32 ids of the response, the end token included
    response: str  # its text
    finish: int  # the reason why it ended
    # total, terms: its grades
    total: float
    terms: dict[str, float]


@dataclass(eq=False)
class OpenSuccessCache:
    """A live cache, by the id of the prompt."""

    options: SuccessCache
    solutions: OrderedDict[str, Solution] = field(default_factory=OrderedDict)

    def __call__(self, group: Group) -> tuple[Group, bool]:
        """Returns the group, with a solution if it has none, and whether a sample was replaced."""
        if any(episode.turns for episode in group.episodes):
            raise InputError(EPISODES)
        term, trajectories = self.options.term, group.trajectories
        if term is not None and term not in group.rewards.terms:
            raise InputError(
                f"collector.cache.term={term} is not a term of the reward, which has "
                f"{', '.join(sorted(group.rewards.terms))}: name one of them, or null."
            )
        if not trajectories.prompt_columns:
            raise InputError(
                "collector.cache needs samples of one prompt and one response, which this rollout "
                "does not promise: leave the cache out."
            )
        right_G = group.right(term)
        if not right_G.any():
            solution = self.solutions.get(group.prompt.id)
            return (group, False) if solution is None else (with_solution(group, solution), True)
        lengths_G = np.sum(trajectories.response_mask_BT, axis=1)
        row = int(np.argmin(np.where(right_G, lengths_G, np.iinfo(np.int64).max)))
        new = Solution(
            tokens=np.asarray(trajectories.tokens_BT)[row, trajectories.response_mask_BT[row]],
            response=group.episodes[row].response,
            finish=int(trajectories.finish_B[row]),
            total=float(group.rewards.total_B[row]),
            terms={name: float(term_B[row]) for name, term_B in group.rewards.terms.items()},
        )
        old = self.solutions.pop(group.prompt.id, None)
        best = new if old is None or len(new.tokens) < len(old.tokens) else old
        self.solutions[group.prompt.id] = best
        while len(self.solutions) > self.options.capacity:
            self.solutions.popitem(last=False)
        return group, False

    def state(self) -> dict[str, Any]:
        solutions = self.solutions.values()
        if not solutions:  # a checkpoint cannot hold empty arrays
            return {}
        return {
            "ids": list(self.solutions),
            "solutions": [
                {name: x for name, x in solution._asdict().items() if name != "tokens"}
                for solution in solutions
            ],
            "lengths": [len(solution.tokens) for solution in solutions],
            "tokens": np.concatenate([solution.tokens for solution in solutions]),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.solutions = OrderedDict()
        if state:
            parts = np.split(state["tokens"], np.cumsum(state["lengths"])[:-1])
            for id, fields, tokens in zip(state["ids"], state["solutions"], parts, strict=True):
                self.solutions[id] = Solution(tokens=tokens, **fields)


def with_solution(group: Group, solution: Solution) -> Group:
    """Returns a copy of the group whose last sample, with its grades, is the solution."""
    changed = {
        name: value.copy()
        for name, value in vars(group.trajectories).items()
        if isinstance(value, np.ndarray)
    }
    columns, length = group.trajectories.prompt_columns, len(solution.tokens)
    response = slice(columns, columns + length)
    rest = slice(columns + length, None)
    before = changed["positions_BT"][-1, columns - 1]
    changed["tokens_BT"][-1, response] = solution.tokens
    changed["response_mask_BT"][-1, response] = True
    changed["segment_ids_BT"][-1, response] = 1
    changed["positions_BT"][-1, response] = before + 1 + np.arange(length)
    changed["response_mask_BT"][-1, rest] = False
    changed["segment_ids_BT"][-1, rest] = 0
    changed["positions_BT"][-1, rest] = before + length
    changed["behaviour_logprobs_BT"][-1, columns:] = 0
    changed["policy_version_BT"][-1, columns:] = -1
    changed["finish_B"][-1] = solution.finish
    if "experts_BTX" in changed:
        changed["experts_BTX"][-1, columns:] = 0
    episode = replace(
        group.episodes[-1],
        response=solution.response,
        tokens=length,
        finish=Finish(solution.finish),
    )
    rewards = group.rewards
    grades = {"total_B": solution.total, "valid_B": True, "late_B": False, "tokens_BT": 0}
    own = {name: np.array(x) for name in grades if (x := getattr(rewards, name)) is not None}
    terms = {name: np.array(term_B) for name, term_B in rewards.terms.items()}
    for name, x in own.items():
        x[-1] = grades[name]
    for name, term_B in terms.items():
        term_B[-1] = solution.terms.get(name, np.nan)
    return Group(
        trajectories=replace(group.trajectories, **changed),
        episodes=(*group.episodes[:-1], episode),
        rewards=Rewards(terms=cast(dict[str, Array], terms), **own),
    )
