"""Evaluation on held-out prompts, with a rollout and a reward phase and without updates."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import jax

from rl4p.distributed.processes import to_host
from rl4p.errors import InputError
from rl4p.loop.grading import graded
from rl4p.loop.phases import Phases
from rl4p.model.policy import Policy
from rl4p.types import Params, Prompt, Rewards, StepInfo, TrainState


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A hook that measures greedy pass@1 on held-out prompts; each question counts once.

    Attributes:
      every: the number of steps between evaluations.
      phases: the phases of the run, possibly with another rollout.
      term: the reward term that decides whether an answer is correct; never the weighted sum.
      of_average: whether to evaluate the moving average of the parameters.
      rows: the number of sequences sampled at a time. It equals that of a training step, so that
        both use the same compiled sampler.
    """

    every: int
    phases: Phases
    policy: Policy
    prompts: Sequence[Prompt]
    term: str
    rows: int
    of_average: bool = False

    def __call__(self, info: StepInfo) -> dict[str, float]:
        return self.evaluate(info.state)

    def evaluate(self, state: TrainState) -> dict[str, float]:
        """Returns `eval/<task>/pass_at_1` and `eval/<task>/prompts` for each task."""
        params = state.average if self.of_average else state.params
        right: dict[str, int] = defaultdict(int)
        asked: dict[str, int] = defaultdict(int)
        for start in range(0, len(self.prompts), self.rows):
            chunk = self.prompts[start : start + self.rows]
            rewards = greedy_rewards(self.phases, self.policy, params, state, chunk, rows=self.rows)
            if self.term not in rewards.terms:
                raise InputError(
                    f"evaluation.term={self.term} is not a term of the reward; its terms are "
                    f"{', '.join(rewards.terms) or 'none'}."
                )
            grades_B, valid_B = to_host((rewards.terms[self.term], rewards.valid_B))
            for prompt, grade, valid in zip(chunk, grades_B, valid_B, strict=True):
                right[prompt.task] += bool(valid and grade >= 1)
                asked[prompt.task] += 1
        return {f"eval/{task}/pass_at_1": right[task] / n for task, n in asked.items()} | {
            f"eval/{task}/prompts": float(n) for task, n in asked.items()
        }


def greedy_rewards(
    phases: Phases,
    policy: Policy,
    params: Params,
    state: TrainState,
    prompts: Sequence[Prompt],
    *,
    rows: int,
) -> Rewards:
    """Samples one greedy response to each prompt and returns the grades.

    The prompts are repeated to fill `rows` sequences; the repetitions are not graded. The memory
    that the phases return is discarded.
    """
    (trajectories, episodes), _ = phases.call(
        "rollout",
        state.memory,
        policy,
        params,
        [prompts[i % len(prompts)] for i in range(rows)],
        group_size=1,
        key=jax.random.key(0),
        version=int(state.step),
        greedy=True,
    )
    counted = slice(len(prompts))
    rewards, _ = graded(
        phases,
        state.memory,
        jax.tree.map(lambda x: x[counted], trajectories),
        episodes[counted],
    )
    return rewards
