"""The policy that the phases use: decoder, tokenizer and mesh."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.types import Params
from rl4p.distributed import placement
from rl4p.distributed.mesh import Mesh
from rl4p.model.cache import KVCacheDtype
from rl4p.model.decoder import Decoder
from rl4p.model.exact_sums import obstacle
from rl4p.model.lora import merge_trees
from rl4p.model.pattern import places

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The constant parts of a policy; the trained parameters are passed separately.

    Attributes:
      end_ids: all tokens that end a response; demonstrations end with the first.
      pad_id: the token that fills rows; only masks, never this id, define padding.
      template: arguments of the tokenizer's chat template.
      chat_template: the chat template in place of the one in the tokenizer's folder; None if it is
        that one.
      date: the date that the chat template sees (`clock.py`); None if it sees none.
      frozen: parameters that are not trained: with LoRA, the parameters of the base model.
      base: the folder or hub id that `frozen` comes from.
      adapted: whether training begins with adapters that were read, so that `frozen` alone is not
        the initial policy.
      wrapper: the folder of the model of several modalities whose text model this is; an export has
        its other tensors too. None if the model is a text model alone.
      kept: the keys of config.json and of generation_config.json in the model's folder that rl4p
        does not decide (`families.harmless.kept_keys`), by file; an export has them.
    """

    decoder: Decoder
    tokenizer: "PreTrainedTokenizerFast"
    mesh: Mesh
    end_ids: tuple[int, ...]
    pad_id: int
    template: Mapping[str, Any] = field(default_factory=dict, hash=False)
    chat_template: str | None = None
    date: str | None = None
    frozen: Params = field(default_factory=dict, repr=False, compare=False)
    base: str = ""
    adapted: bool = False
    wrapper: Path | None = None
    kept: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.decoder.exact:
            decoder, mesh = self.decoder, self.mesh
            reason = obstacle(decoder.config, decoder.lora.rank, mesh.size, mesh.platform)
            if reason is not None:
                raise InputError(f"model.exact=true {reason}: leave it out.")
        if self.decoder.config.has_state and self.mesh.column_shards > 1:
            raise InputError(
                f"mesh.cp={self.mesh.column_shards} is not possible, because the model has layers "
                "with a state, which passes through the columns of a row one after another: set it "
                "to 1."
            )

    def merged(self, trained: Params) -> Params:
        """Returns the merged parameters, frozen and trained, that the decoder takes."""
        return merge_trees(self.frozen, trained)

    def with_score_head(
        self, trained: Params, create: Callable[[Mesh, Callable[[], Params]], Params]
    ) -> tuple["Policy", Params]:
        """Returns a policy with a score in place of the token head, and its trained parameters.

        A new head scores every sequence 0. The policy samples nothing (`update=reward_model`).

        Args:
          create: `placement.init`, or `placement.shapes` for a plan.

        Raises:
          InputError: the model is a classifier of several labels or the text model of a larger one,
            or the mesh divides columns.
        """
        config = self.decoder.config
        if config.wrapper:
            raise InputError(
                "model.score_head=true needs a text model, and this is one of several modalities: "
                "choose another model."
            )
        if config.labels > 1:
            raise InputError(
                f"model.score_head=true trains one score, but the model has {config.labels} "
                "labels: choose another model."
            )
        if self.mesh.column_shards > 1:
            raise InputError(
                f"mesh.cp={self.mesh.column_shards} divides the sequences of which "
                "model.score_head=true reads the last token: set it to 1."
            )
        everything = self.frozen | trained
        score = (
            {"score": everything["score"]}
            if config.labels
            else create(self.mesh, lambda: {"score": jnp.zeros((1, config.width))})
        )
        frozen, trained = (
            {name: x for name, x in tree.items() if name not in ("head", "score")}
            for tree in (self.frozen, trained)
        )
        decoder = replace(self.decoder, config=replace(config, labels=1))
        return replace(self, decoder=decoder, frozen=frozen), trained | score

    def without_critic(self, trained: Params) -> Params:
        """Returns the merged parameters without the parameters of a critic."""
        return {name: x for name, x in self.merged(trained).items() if name != "critic"}

    @cached_property
    def sampling_mesh(self) -> Mesh:
        """The mesh that samples (`Mesh.sampling_mesh`), if it divides the policy."""
        config = self.decoder.config
        self.mesh.check_divides_sampling(config.dimensions)
        return self.mesh.sampling_mesh(config.heads, config.cached_heads)

    def with_kv_cache(self, dtype: KVCacheDtype) -> "Policy":
        """Returns the policy whose caches have keys and values of another dtype.

        Args:
          dtype: `auto`, that of activations, or `int8` with scales (`cache.QuantizedKeysValues`).

        Raises:
          InputError: the layers have no keys and values, or `model.exact` is set.
        """
        decoder = self.decoder
        if dtype == "int8" and decoder.exact:
            raise InputError(
                f"kv_cache_dtype={dtype} rounds what model.exact=true keeps in every digit: leave "
                "it out."
            )
        if dtype == "int8" and "attention" not in {kind.mixer for kind in decoder.config.kinds}:
            latent = decoder.config.latent is not None
            what = "latents, which have no heads," if latent else "states"
            raise InputError(
                f"kv_cache_dtype={dtype} has no effect, because the layers of this model cache "
                f"{what} and no keys: leave it out."
            )
        return replace(self, decoder=replace(decoder, kv_cache_dtype=dtype))

    def for_sampling(self, trained: Params) -> Params:
        """Returns the merged parameters without a critic, on the sampling mesh.

        They have one tree per layer (`Decoder.extend`), and matrices in the dtype of activations.

        Raises:
          InputError: the model has a score head, and no token head.
        """
        if self.decoder.config.labels:
            raise InputError(
                "A model with a score head generates no tokens: use it as a reward "
                "(term=classifier), or leave model.score_head out."
            )
        params = self.without_critic(trained)
        decoder = self.decoder
        at = places(decoder.config)
        return placement.for_sampling(self.sampling_mesh, params, decoder.dtype, at)


def padded_width(longest: int) -> int:
    """Returns the next power of two, at least 16: few widths need few compilations."""
    return max(16, int(2 ** np.ceil(np.log2(longest))))


def pad_left(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns tokens int32 and mask bool [P, T], where T is the `padded_width` of the longest."""
    width = padded_width(max(map(len, rows)))
    tokens_PT = np.full((len(rows), width), pad_id, np.int32)
    mask_PT = np.zeros((len(rows), width), bool)
    for row, tokens in enumerate(rows):
        tokens_PT[row, width - len(tokens) :] = tokens
        mask_PT[row, width - len(tokens) :] = True
    return tokens_PT, mask_PT
