"""A rollout that takes worked answers from the data set, for supervised training."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rl4p.configuration.bounds import Positive
from rl4p.errors import InputError
from rl4p.model.policy import Policy
from rl4p.rollout.answers import answers
from rl4p.rollout.engine import Completion, finish
from rl4p.types import Array, Episode, Params, Prompt, Sampling, Trajectories


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
    ) -> tuple[Trajectories, Sequence[Episode]]:
        if greedy:
            raise InputError(
                "rollout=demonstrations has no policy to evaluate: add a sampler for the "
                "evaluation, +rollout@evaluation.rollout=continuous."
            )
        without = next((prompt.id for prompt in prompts if prompt.solution is None), None)
        if without is not None:
            raise InputError(
                f"rollout=demonstrations needs a solution for every prompt, but {without} of this "
                "data set has none."
            )
        solutions = policy.tokenizer(
            [prompt.solution or "" for prompt in prompts], add_special_tokens=False
        )["input_ids"]
        completions = []
        for solution in solutions:
            ended = [*solution, policy.end_ids[0]]
            tokens = np.array(ended[: self.max_response_tokens], np.int32)
            completion = Completion(
                tokens=tokens,
                logprobs=np.zeros(tokens.shape, np.float32),
                versions=np.full_like(tokens, -1),
                finish=finish(tokens, policy.end_ids),
            )
            completions += [completion] * group_size
        return answers(policy, prompts, completions, self.max_response_tokens)
