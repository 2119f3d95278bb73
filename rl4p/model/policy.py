"""A policy as the phases see it: decoder, tokenizer, mesh."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from rl4p.mesh import Mesh
from rl4p.model.decoder import Decoder
from rl4p.model.lora import join
from rl4p.types import Params, Prompt, Trajectories

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What does not change while a policy is trained; its parameters travel apart.

    Attributes:
      end_ids: every token that ends a response.
      pad_id: fills rows up; masks say what is padding, never this id.
      template: arguments of the tokenizer's chat template.
      frozen: parameters that are not trained, which those that are stand beside (LoRA's base).
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

    def whole(self, trained: Params) -> Params:
        """The parameters that the decoder runs with."""
        return join(self.frozen, trained)

    def pad_prompts(self, prompts: Sequence[Prompt]) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and mask [B, T], padded left: all responses start in one column."""
        width = padded_width(max(len(prompt.tokens) for prompt in prompts))
        tokens_BT = np.full((len(prompts), width), self.pad_id, np.int32)
        mask_BT = np.zeros((len(prompts), width), bool)
        for row, prompt in enumerate(prompts):
            tokens_BT[row, width - len(prompt.tokens) :] = prompt.tokens
            mask_BT[row, width - len(prompt.tokens) :] = True
        return tokens_BT, mask_BT

    def responses(self, trajectories: Trajectories) -> tuple[str, ...]:
        """The responses as text, special tokens left out."""
        tokens_BT, mask_BT = jax.device_get((trajectories.tokens_BT, trajectories.response_mask_BT))
        rows = [tokens[mask].tolist() for tokens, mask in zip(tokens_BT, mask_BT, strict=True)]
        return tuple(self.tokenizer.batch_decode(rows, skip_special_tokens=True))


def padded_width(longest: int) -> int:
    """The next power of two, at least 16: few widths, so few compilations."""
    return max(16, int(2 ** np.ceil(np.log2(longest))))
