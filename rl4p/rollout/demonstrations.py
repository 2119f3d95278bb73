"""Worked answers from the data set in place of samples: supervised training in the same loop."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rl4p.bounds import Positive
from rl4p.errors import InputError
from rl4p.model.policy import Policy
from rl4p.types import Array, Finish, Params, Prompt, Sampling, Texts, Trajectories


@dataclass(frozen=True, kw_only=True)
class Demonstrations:
    """Each prompt's `solution` and an end token, as if the policy had said it.

    No policy chose these tokens: behaviour logprobs are 0 and the policy version is -1. A solution
    over `max_response_tokens` is cut there and marked so (`Finish.LENGTH`).
    """

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
        prompts = tuple(prompt for prompt in prompts for _ in range(group_size))
        B, R = len(prompts), self.max_response_tokens
        without = next((prompt.id for prompt in prompts if prompt.solution is None), None)
        if without is not None:
            raise InputError(
                f"rollout=demonstrations needs a worked solution for every prompt; {without} of "
                "this data set has none."
            )
        response_BR = np.full((B, R), policy.pad_id, np.int32)
        mask_BR = np.zeros((B, R), bool)
        finish_B = np.full(B, Finish.STOP, np.int8)
        solutions = policy.tokenizer(
            [prompt.solution or "" for prompt in prompts], add_special_tokens=False
        )["input_ids"]
        for row, ids in enumerate(solutions):
            ids = [*ids, policy.end_ids[0]]
            finish_B[row] = Finish.STOP if len(ids) <= R else Finish.LENGTH
            response_BR[row, : len(ids)] = ids[:R]
            mask_BR[row, : len(ids)] = True
        prompt_BT, prompt_mask_BT = policy.pad_prompts(prompts)
        segments_BT = np.concatenate([prompt_mask_BT, mask_BR], axis=1).astype(np.int32)
        trajectories = Trajectories(
            tokens_BT=np.concatenate([prompt_BT, response_BR], axis=1),
            response_mask_BT=np.concatenate([np.zeros_like(prompt_mask_BT), mask_BR], axis=1),
            positions_BT=np.maximum(np.cumsum(segments_BT, axis=1, dtype=np.int32) - 1, 0),
            segment_ids_BT=segments_BT,
            behaviour_logprobs_BT=np.zeros(segments_BT.shape, np.float32),
            group_ids_B=np.arange(B, dtype=np.int32) // group_size,
            policy_version_B=np.full(B, -1, np.int32),
            finish_B=finish_B,
        )
        trajectories = policy.mesh.shard_rows(trajectories)
        return trajectories, Texts(prompts=prompts, responses=policy.responses(trajectories))
