"""The scores of a reward model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.types import Array, Episode, Microbatching, Params
from rl4p.configuration.bounds import AboveZero, Natural, Positive
from rl4p.configuration.capability import ReadPath
from rl4p.distributed.mesh import Mesh, OwnMesh
from rl4p.learner.microbatches import MicrobatchRows, fold, spread
from rl4p.model.chat_templates import date_of, set_clock, uses_clock
from rl4p.model.decoder import Decoder
from rl4p.model.heads import scores
from rl4p.model.huggingface import read_config, read_params
from rl4p.model.model_files import model_files
from rl4p.model.policy import padded_width
from rl4p.model.tensor_files import read_json
from rl4p.model.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

WIDTHS = 4  # loops for rows of different lengths; each compiles the model once


class LoadedClassifier(NamedTuple):
    """A sequence classifier with its tokenizer and mesh; `pad_id` is in its config.json."""

    decoder: Decoder
    params: Params
    tokenizer: "PreTrainedTokenizerFast"
    mesh: Mesh
    pad_id: int | None


@dataclass(frozen=True, kw_only=True)
class Classifier:
    r"""One raw score of a sequence classifier: h_last s_label, without a sigmoid or scaling.

        python -m rl4p.train +term@reward.terms.model=classifier reward.terms.model.path=FOLDER

    The classifier's own chat template renders the system prompt, the prompt and the response, and
    alone decides on special tokens. As in transformers, the score is taken at the last token other
    than config.json's pad_token_id. If the pad token also ends turns, this is the token before it.
    A text longer than `max_tokens` gets nan, which makes the sample invalid; it is never truncated.

    The classifier is read once, when the run is built; an unsuitable folder is refused then. The
    parameters are replicated, and rows are split over the devices.

    Attributes:
      path: a folder with config.json (architectures: ...ForSequenceClassification), safetensors,
        tokenizer and chat template; or OWNER/NAME, or OWNER/NAME@REVISION, on the hub.
      label: index of the score.
      max_tokens: limit of prompt and response together, in the classifier's tokens.
      tokens_per_microbatch: number of tokens in memory at once, padding included.
      dtype: dtype of parameters and activations; scores are always float32.
      date: the date that the chat template sees, in ISO 8601, which a template with a date needs.
      deadline: seconds for a batch; None for no limit, because the first batch compiles the model.
    """

    has_model: ClassVar[bool] = True

    weight: float = 1.0
    path: ReadPath
    label: Natural = 0
    max_tokens: Positive = 2048
    tokens_per_microbatch: Positive = 8192
    dtype: Literal["float32", "bfloat16"] = "float32"
    date: str | None = None
    deadline: AboveZero | None = None

    def __post_init__(self) -> None:
        try:
            _ = self.model
        except InputError as error:  # `instantiate` puts this term's key before it
            raise ValueError(str(error).removeprefix("model.")) from error

    @cached_property
    def model(self) -> LoadedClassifier:
        files = model_files(self.path)
        folder = files.weights
        config, file = read_config(folder), folder / "config.json"
        if not config.labels:
            raise InputError(
                f"path={folder} has no score head: none of its architectures "
                f"{read_json(file).get('architectures')} is a sequence classifier."
            )
        if self.label >= config.labels:
            raise InputError(
                f"label={self.label}, but the labels of {folder} are 0 to {config.labels - 1}."
            )
        if self.max_tokens > config.max_positions:
            raise InputError(
                f"max_tokens={self.max_tokens} is more than the {config.max_positions} positions "
                f"of {folder}."
            )
        tokenizer: Any = load_tokenizer(files.tokenizer)
        if self.date is None and uses_clock(tokenizer):
            raise InputError(
                f"date must be set, because the chat template of {folder} has the date of today: "
                "without it, scores would change from day to day."
            )
        if (date := date_of(tokenizer, self.date, "date")) is not None:
            set_clock(tokenizer, date)
        largest = max(tokenizer.get_vocab().values())
        if largest >= config.vocabulary:
            raise InputError(
                f"The tokenizer in {folder} has token {largest}, but the embedding has only "
                f"{config.vocabulary} rows."
            )
        mesh = OwnMesh()
        decoder = Decoder(config=config, dtype=self.dtype, platform=mesh.platform)
        params = read_params(folder, decoder, self.dtype, mesh, files.adapter)
        return LoadedClassifier(
            decoder, params, tokenizer, mesh, read_json(file).get("pad_token_id")
        )

    def __call__(self, episodes: Sequence[Episode]) -> list[float]:
        decoder, params, tokenizer, mesh, pad_id = self.model
        rows: list[Any] = [
            tokenizer.apply_chat_template(each.messages, tokenize=True, return_dict=False)
            for each in episodes
        ]
        kept = [row if len(row) <= self.max_tokens else [] for row in rows]
        T = padded_width(max(1, *map(len, kept)))
        tokens_BT = np.array([row + [0] * (T - len(row)) for row in kept], np.int32)
        last_B = [max((t for t, x in enumerate(row) if x != pad_id), default=0) for row in kept]
        lengths_B = np.array([t + 1 if row else 0 for t, row in zip(last_B, kept, strict=True)])
        batch = mesh.replicate((tokens_BT, lengths_B.astype(np.int32)))
        microbatching = Microbatching(tokens=self.tokens_per_microbatch, widths=WIDTHS)
        scores_BL = np.asarray(last_scores(decoder, params, *batch, microbatching, mesh))
        scores_B = scores_BL[:, self.label].tolist()
        return [score if row else math.nan for score, row in zip(scores_B, kept, strict=True)]


@partial(jax.jit, static_argnames=("decoder", "microbatching", "mesh"))
def last_scores(
    decoder: Decoder,
    params: Params,
    tokens_BT: Array,
    lengths_B: Array,
    microbatching: Microbatching,
    mesh: Mesh,
) -> Array:
    """Returns float32 [B, labels], at the last token of each row; 0 for a row of length 0."""

    def score_rows(params: Params, batch: tuple[Array, Array]) -> Array:
        def score(scores_BL: Any, part: tuple[Array, Array], rows: MicrobatchRows) -> Array:
            tokens_BT, segment_ids_BT = part
            positions_BT = jnp.broadcast_to(jnp.arange(tokens_BT.shape[1]), tokens_BT.shape)
            hidden_BTD = decoder.hidden(params, tokens_BT, positions_BT, segment_ids_BT)
            last_B = jnp.maximum(jnp.sum(segment_ids_BT, axis=1) - 1, 0)
            hidden_BD = jnp.take_along_axis(hidden_BTD, last_B[:, None, None], axis=1)[:, 0]
            return scores_BL.at[rows.rows_b].set(scores(params, hidden_BD), mode="drop")

        zeros_BL = jnp.zeros((batch[0].shape[0], decoder.config.labels))
        return fold(score, zeros_BL, batch, batch[1], microbatching)

    segment_ids_BT = (jnp.arange(tokens_BT.shape[1])[None] < lengths_B[:, None]).astype(jnp.int32)
    return spread(score_rows, params, (tokens_BT, segment_ids_BT), segment_ids_BT, mesh)
