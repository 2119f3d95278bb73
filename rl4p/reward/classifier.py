"""The scores of a reward model."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.configuration.bounds import Natural, Positive
from rl4p.distributed.mesh import Mesh, OwnMesh
from rl4p.errors import InputError
from rl4p.model.decoder import Decoder
from rl4p.model.heads import scores
from rl4p.model.hub import model_folder
from rl4p.model.huggingface import read_config, read_params
from rl4p.model.policy import padded_width
from rl4p.model.tensor_files import read_json
from rl4p.model.tokenizer import load_tokenizer
from rl4p.types import Array, Params, Prompt, Texts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class RewardModel(NamedTuple):
    """A sequence classifier with its tokenizer and mesh; `pad_id` is that of its config.json."""

    decoder: Decoder
    params: Params
    tokenizer: "PreTrainedTokenizerFast"
    mesh: Mesh
    pad_id: int | None


@dataclass(frozen=True, kw_only=True)
class Classifier:
    r"""One raw score of a sequence classifier: h_last s_label, without a sigmoid or scaling.

        python -m rl4p.train +reward.terms.NAME.path=FOLDER \
            +reward.terms.NAME._target_=rl4p.reward.classifier.Classifier

    The classifier's own chat template renders the system prompt, the prompt and the response, and
    alone decides on special tokens. As in transformers, the score is that of the last token that is
    not config.json's pad_token_id: if the pad token also ends turns, the score is that of the token
    before. A text longer than `max_tokens` gets None and is never truncated.

    The classifier is read once, when the run is built; an unsuitable folder is refused then. The
    parameters are replicated, and rows are split over the devices.

    Attributes:
      path: a folder with config.json (architectures: ...ForSequenceClassification), safetensors,
        tokenizer and chat template; or OWNER/NAME, or OWNER/NAME@REVISION, on the hub.
      label: index of the score.
      max_tokens: limit of prompt and response together, in the classifier's tokens.
      tokens_per_microbatch: number of tokens in memory at once, padding included.
      dtype: dtype of parameters and activations; scores are always float32.
    """

    weight: float = 1.0
    path: str
    label: Natural = 0
    max_tokens: Positive = 2048
    tokens_per_microbatch: Positive = 8192
    dtype: Literal["float32", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        try:
            _ = self.model
        except InputError as error:  # `instantiate` puts this term's key before it
            raise ValueError(str(error).removeprefix("model.")) from error

    @cached_property
    def model(self) -> RewardModel:
        folder = model_folder(self.path)
        config, file = read_config(folder), folder / "config.json"
        if not config.labels:
            raise InputError(
                f"path={folder} has no score head: its architectures are "
                f"{read_json(file).get('architectures')}, none a sequence classifier."
            )
        if self.label >= config.labels:
            raise InputError(f"label={self.label}, but {folder} has {config.labels}, from 0.")
        if self.max_tokens > config.max_positions:
            raise InputError(
                f"max_tokens={self.max_tokens} is more than the {config.max_positions} positions "
                f"of {folder}."
            )
        tokenizer: Any = load_tokenizer(folder)
        largest = max(tokenizer.get_vocab().values())
        if largest >= config.vocabulary:
            raise InputError(
                f"The tokenizer in {folder} has token {largest}, but the embedding only "
                f"{config.vocabulary} rows, from 0."
            )
        decoder, mesh = Decoder(config=config, dtype=self.dtype), OwnMesh()
        params = read_params(folder, decoder, self.dtype, mesh)
        return RewardModel(decoder, params, tokenizer, mesh, read_json(file).get("pad_token_id"))

    def __call__(self, texts: Texts) -> list[float | None]:
        rows = [
            self.tokens(prompt, response)
            for prompt, response in zip(texts.prompts, texts.responses, strict=True)
        ]
        grades: list[float | None] = [None] * len(rows)
        by_width: dict[int, list[int]] = {}
        for b, row in enumerate(rows):
            if len(row) <= self.max_tokens:
                by_width.setdefault(padded_width(len(row)), []).append(b)
        for width, members in by_width.items():
            # All batches of a width have the same size, so that a width is compiled once.
            count = max(1, min(self.tokens_per_microbatch // width, len(rows)))
            count += -count % self.model.mesh.row_shards
            for start in range(0, len(members), count):
                chosen = members[start : start + count]
                scores_B = self.scores([rows[b] for b in chosen], count, width)
                for b, score in zip(chosen, scores_B.tolist(), strict=False):
                    grades[b] = score
        return grades

    def tokens(self, prompt: Prompt, response: str) -> list[int]:
        """Returns the conversation in tokens of the classifier."""
        system = prompt.system_prompt
        return self.model.tokenizer.apply_chat_template(  # pyright: ignore[reportReturnType]
            [
                *([{"role": "system", "content": system}] if system else []),
                {"role": "user", "content": prompt.question},
                {"role": "assistant", "content": response},
            ],
            tokenize=True,
            return_dict=False,
        )

    def scores(self, rows: Sequence[Sequence[int]], count: int, width: int) -> np.ndarray:
        """Returns float32 [count]; scores beyond the given rows are those of padding."""
        decoder, params, _, mesh, pad_id = self.model
        tokens_BT, last_B = np.zeros((count, width), np.int32), np.zeros(count, np.int32)
        for b, row in enumerate(rows):
            tokens_BT[b, : len(row)] = row
            last_B[b] = max((t for t, token in enumerate(row) if token != pad_id), default=0)
        batch = mesh.shard_rows((tokens_BT, last_B))
        return np.asarray(last_scores(decoder, params, *batch))[:, self.label]


@partial(jax.jit, static_argnames="decoder")
def last_scores(decoder: Decoder, params: Params, tokens_BT: Array, last_B: Array) -> Array:
    """Returns float32 [B, labels], at the last token of each row; tokens after it are masked."""
    positions_BT = jnp.broadcast_to(jnp.arange(tokens_BT.shape[1]), tokens_BT.shape)
    segment_ids_BT = (positions_BT <= last_B[:, None]).astype(jnp.int32)
    hidden_BTD = decoder.hidden(params, tokens_BT, positions_BT, segment_ids_BT)
    hidden_BD = jnp.take_along_axis(hidden_BTD, last_B[:, None, None], axis=1)[:, 0]
    return scores(params, hidden_BD)
