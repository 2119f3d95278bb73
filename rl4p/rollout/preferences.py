"""A rollout that takes the two responses of preference pairs from the data set."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rl4p.base.errors import InputError
from rl4p.base.types import Array, Episode, Params, Prompt, Sampling, Trajectories
from rl4p.configuration.bounds import Positive
from rl4p.model.policy import Policy
from rl4p.rollout.sampler import answers, given_completion


@dataclass(frozen=True, kw_only=True)
class Preferences:
    """A rollout whose groups are the preferred and the rejected response of a pair, in this order.

    It needs data with pairs (`data=preferences`), `group_size=2` and an update that compares the
    samples of a group, such as `update=dpo`. `reward=preferences` rewards the first response.

    No policy chose these tokens, so the behaviour logprobs are 0 and the policy version is -1. A
    response longer than `max_response_tokens` is cut there and marked `Finish.LENGTH`.
    """

    samples: ClassVar[bool] = False
    pairs: ClassVar[bool] = True
    sampling: ClassVar[Sampling] = Sampling()

    max_response_tokens: Positive

    def __call__(
        self,
        policy: Policy,
        params: Params,
        prompts: Sequence[Prompt],
        *,
        group_size: int,
        key: Array,
        version: int,
        greedy: bool = False,
    ) -> tuple[Trajectories, Sequence[Episode]]:
        if greedy:
            raise InputError(
                "rollout=preferences has no policy to evaluate: set evaluation.loss=true, or add a "
                "sampler for the evaluation, +rollout@evaluation.rollout=continuous."
            )
        limit = self.max_response_tokens
        completions = [
            given_completion(tokens, limit, policy.end_ids)
            for prompt in prompts
            for tokens in prompt.responses
        ]
        if len(completions) != group_size * len(prompts):
            raise InputError(
                f"rollout=preferences gives 2 responses to each prompt, but group_size is "
                f"{group_size}: set group_size=2."
            )
        return answers(policy, prompts, completions, limit)
