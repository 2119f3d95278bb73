"""The policy that the phases use: decoder, tokenizer and mesh."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from rl4p.distributed import placement
from rl4p.distributed.mesh import Mesh
from rl4p.distributed.processes import to_host
from rl4p.model.decoder import Decoder
from rl4p.model.lora import join
from rl4p.types import Array, Finish, Params, Prompt, Texts, Trajectories

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The constant parts of a policy; the trained parameters are passed separately.

    Attributes:
      end_ids: all tokens that end a response; demonstrations end with the first.
      pad_id: the token that fills rows; only masks, never this id, define padding.
      template: arguments of the tokenizer's chat template.
      frozen: parameters that are not trained: with LoRA, those of the base model.
      base: the folder or hub id that `frozen` comes from.
    """

    decoder: Decoder
    tokenizer: "PreTrainedTokenizerFast"
    mesh: Mesh
    end_ids: tuple[int, ...]
    pad_id: int
    template: Mapping[str, Any] = field(default_factory=dict, hash=False)
    frozen: Params = field(default_factory=dict, repr=False, compare=False)
    base: str = ""

    def merged(self, trained: Params) -> Params:
        """Returns the merged parameters, frozen and trained, that the decoder takes."""
        return join(self.frozen, trained)

    def without_critic(self, trained: Params) -> Params:
        """Returns the merged parameters without those of a critic."""
        return {name: x for name, x in self.merged(trained).items() if name != "critic"}

    def for_sampling(self, trained: Params) -> Params:
        """Returns the merged parameters without a critic, on the sampling mesh.

        They have one tree per layer (`Decoder.extend`) and matrices in the dtype of activations.
        """
        return placement.for_sampling(self.mesh, self.without_critic(trained), self.decoder.dtype)

    def pad_prompts(self, prompts: Sequence[Prompt]) -> tuple[np.ndarray, np.ndarray]:
        """Returns tokens and mask [B, T], padded left so that responses start in one column."""
        width = padded_width(max(len(prompt.tokens) for prompt in prompts))
        tokens_BT = np.full((len(prompts), width), self.pad_id, np.int32)
        mask_BT = np.zeros((len(prompts), width), bool)
        for row, prompt in enumerate(prompts):
            tokens_BT[row, width - len(prompt.tokens) :] = prompt.tokens
            mask_BT[row, width - len(prompt.tokens) :] = True
        return tokens_BT, mask_BT

    def trajectories(
        self,
        prompts: Sequence[Prompt],
        group_size: int,
        *,
        tokens_BR: Array,
        lengths_B: Array,
        logprobs_BR: Array,
        version: int,
    ) -> tuple[Trajectories, Texts]:
        """Joins left-padded prompts with `group_size` responses each, sharded over the mesh.

        Args:
          tokens_BR: int32 response tokens; columns beyond a response's length are ignored.
          lengths_B: the lengths of responses, at least 1.
          logprobs_BR: float32, under the distribution that the tokens were drawn from.
          version: the weight version that drew the tokens.
        """
        tokens_BR, lengths_B, logprobs_BR = to_host((tokens_BR, lengths_B, logprobs_BR))
        tokens_PT, mask_PT = self.pad_prompts(prompts)
        B, R = tokens_BR.shape
        mask_BR = np.arange(R) < lengths_B[:, None]
        ended_B = np.isin(tokens_BR[np.arange(B), lengths_B - 1], self.end_ids)

        def beside(prompt_PT: np.ndarray, response_BR: np.ndarray) -> np.ndarray:
            return np.concatenate([np.repeat(prompt_PT, group_size, axis=0), response_BR], axis=1)

        tokens_BT = beside(tokens_PT, np.where(mask_BR, tokens_BR, np.int32(self.pad_id)))
        response_mask_BT = beside(np.zeros_like(mask_PT), mask_BR)
        segments_BT = beside(mask_PT, mask_BR).astype(np.int32)
        words = [row[mask].tolist() for row, mask in zip(tokens_BR, mask_BR, strict=True)]
        responses = Decoded(self.tokenizer, words)
        texts = Texts(
            prompts=tuple(prompt for prompt in prompts for _ in range(group_size)),
            responses=responses if jax.process_count() > 1 else tuple(responses),
        )
        trajectories = Trajectories(
            tokens_BT=tokens_BT,
            response_mask_BT=response_mask_BT,
            positions_BT=np.maximum(np.cumsum(segments_BT, axis=1, dtype=np.int32) - 1, 0),
            segment_ids_BT=segments_BT,
            behaviour_logprobs_BT=beside(
                np.zeros(mask_PT.shape, np.float32), np.where(mask_BR, logprobs_BR, np.float32(0))
            ),
            group_ids_B=np.arange(B, dtype=np.int32) // group_size,
            policy_version_B=np.full(B, version, np.int32),
            finish_B=np.where(ended_B, Finish.STOP, Finish.LENGTH).astype(np.int8),
            group_size=group_size,
            prompt_columns=tokens_PT.shape[1],
        )
        return self.mesh.shard_rows(trajectories), texts


@dataclass(frozen=True)
class Decoded(Sequence[str]):
    """A lazy sequence of decoded responses, since each of several processes reads only some."""

    tokenizer: "PreTrainedTokenizerFast"
    tokens: list[list[int]]

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return Decoded(self.tokenizer, self.tokens[at])
        return self.tokenizer.decode(self.tokens[at], skip_special_tokens=True)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tokenizer.batch_decode(self.tokens, skip_special_tokens=True))


def padded_width(longest: int) -> int:
    """Returns the next power of two, at least 16: few widths need few compilations."""
    return max(16, int(2 ** np.ceil(np.log2(longest))))
