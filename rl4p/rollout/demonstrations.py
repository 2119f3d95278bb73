"""A rollout that takes worked answers from the data set, for supervised training."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rl4p.base.errors import InputError
from rl4p.base.types import Array, Episode, Params, Prompt, Sampling, Trajectories
from rl4p.configuration.bounds import Positive
from rl4p.model.policy import Policy
from rl4p.rollout.sampler import answers, given_completion


@dataclass(frozen=True, kw_only=True)
class Demonstrations:
    """A rollout whose responses are worked answers of the data set.

    The answer to a prompt of a conversation is its `demonstration`; the response mask holds all
    messages of the assistant, also those in the prompt. The answer to another prompt is its
    `solution`, followed by an end token.

    No policy chose these tokens, so the behaviour logprobs are 0 and the policy version is -1. An
    answer longer than `max_response_tokens` is cut there and marked `Finish.LENGTH`.
    """

    samples: ClassVar[bool] = False
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
                "rollout=demonstrations has no policy to evaluate: add a sampler for the "
                "evaluation, +rollout@evaluation.rollout=continuous."
            )
        answered = worked_answers(policy, prompts)
        completions = []
        for answer in answered:
            completion = given_completion(answer, self.max_response_tokens, policy.end_ids)
            completions += [completion] * group_size
        trained = None
        if any(prompt.demonstration for prompt in prompts):
            # The ranges of trained tokens in the sequence of a prompt and its worked answer.
            trained = [
                prompt.demonstration.trained
                if prompt.demonstration
                else [(len(prompt.tokens), len(prompt.tokens) + len(answer))]
                for prompt, answer in zip(prompts, answered, strict=True)
            ]
        return answers(policy, prompts, completions, self.max_response_tokens, trained)


def worked_answers(policy: Policy, prompts: Sequence[Prompt]) -> list[Sequence[int]]:
    """Returns the tokens of the worked answer to each prompt, the end token included.

    Raises:
      InputError: a prompt has none, or its conversation was not encoded with its answers.
    """
    for prompt in prompts:
        if prompt.demonstration is None and prompt.messages is not None:
            raise InputError(
                f"rollout=demonstrations needs the tokens of the conversation {prompt.id}: encode "
                "it with rl4p.data.conversation.encode_demonstrations."
            )
        if prompt.demonstration is None and prompt.solution is None:
            raise InputError(
                f"rollout=demonstrations needs a solution for every prompt, but {prompt.id} of "
                "this data set has none."
            )
    solutions = ["" if prompt.demonstration else prompt.solution or "" for prompt in prompts]
    encoded: Any = policy.tokenizer(solutions, add_special_tokens=False)["input_ids"]
    return [
        prompt.demonstration.tokens if prompt.demonstration else [*solution, policy.end_ids[0]]
        for prompt, solution in zip(prompts, encoded, strict=True)
    ]
