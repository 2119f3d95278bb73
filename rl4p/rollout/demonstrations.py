"""A rollout that takes worked answers from the data set, for supervised training."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rl4p.configuration.bounds import Positive
from rl4p.errors import InputError
from rl4p.model.policy import Policy
from rl4p.types import Array, Params, Prompt, Sampling, Texts, Trajectories


@dataclass(frozen=True, kw_only=True)
class Demonstrations:
    """A rollout whose responses are each prompt's `solution`, followed by an end token.

    No policy chose these tokens, so the behaviour logprobs are 0 and the policy version is -1. A
    solution longer than `max_response_tokens` is cut there and marked `Finish.LENGTH`.
    """

    samples: ClassVar[bool] = False

    max_response_tokens: Positive

    @property
    def sampling(self) -> Sampling:
        return Sampling()

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
    ) -> tuple[Trajectories, Texts]:
        if greedy:
            raise InputError(
                "rollout=demonstrations has no policy to evaluate: give the evaluation a sampler, "
                "by +rollout@evaluation.rollout=continuous."
            )
        without = next((prompt.id for prompt in prompts if prompt.solution is None), None)
        if without is not None:
            raise InputError(
                f"rollout=demonstrations needs a worked solution for every prompt; {without} of "
                "this data set has none."
            )
        P, R = len(prompts), self.max_response_tokens
        tokens_PR, lengths_P = np.zeros((P, R), np.int32), np.zeros(P, np.int32)
        solutions = policy.tokenizer(
            [prompt.solution or "" for prompt in prompts], add_special_tokens=False
        )["input_ids"]
        for row, solution in enumerate(solutions):
            tokens = [*solution, policy.end_ids[0]][:R]
            tokens_PR[row, : len(tokens)] = tokens
            lengths_P[row] = len(tokens)
        return policy.trajectories(
            prompts,
            group_size,
            tokens_BR=np.repeat(tokens_PR, group_size, axis=0),
            lengths_B=np.repeat(lengths_P, group_size),
            logprobs_BR=np.zeros((P * group_size, R), np.float32),
            version=-1,
        )
