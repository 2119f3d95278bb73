"""A policy from a Hugging Face folder on this machine or on the hub."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import jax

from rl4p.base.errors import InputError
from rl4p.base.types import Array, Params
from rl4p.configuration.capability import ReadPath
from rl4p.distributed import placement
from rl4p.distributed.mesh import Mesh
from rl4p.distributed.partition import held_dtype
from rl4p.model.adapter_start import begin, check_begin
from rl4p.model.attention import Choice, kernel_for
from rl4p.model.chat_templates import Key, chat_template, date_of, set_clock
from rl4p.model.decoder import Decoder, Remat
from rl4p.model.families.harmless import check_keys, kept_keys
from rl4p.model.huggingface import read_config, read_params
from rl4p.model.lora import LoRA
from rl4p.model.model_files import ModelFiles, check_adapter, model_files
from rl4p.model.policy import Policy
from rl4p.model.quantization import quantized_shapes
from rl4p.model.tensor_files import read_json
from rl4p.model.tokenizer import check_template, load_tokenizer

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A policy from config.json, safetensors, tokenizer.json and chat template of one folder.

    Attributes:
      path: a folder, its address in an object store such as s3://BUCKET/NAME, or OWNER/NAME or
        OWNER/NAME@REVISION on the Hugging Face hub. `rl4p/tiny` is the policy that comes with the
        package. It may be an adapter of PEFT, which is merged into its base model, or trained on
        if `lora` has its rank, scale and targets.
      dtype: the dtype of activations.
      param_dtype: the dtype of the model's parameters; None keeps the dtype in the files. If
        bfloat16 parameters are trained, rounding loses most of the optimizer's steps. `nf4` holds
        the projections in 4 bits (`nf4.py`), and the rest in bfloat16; only adapters are trained.
      remat: which activations the backward pass recomputes (`Decoder`), to save memory for time.
      unroll: unrolls the layers, which makes updates faster on a CPU; requires `remat=none`
        (`Decoder`).
      exact: sums have an order that does not depend on the batch, so that the sampler's
        log-probabilities are the trainer's in every digit; on a CPU (`exact_sums.py`).
      attention: the attention kernel for full sequences: `xla`, `cudnn` (GPU), `splash` (TPU), or
        `auto`, the fastest one for these devices and this model.
      experts: the dispatch in a model with experts: `dense` runs all experts on every token,
        `grouped` runs each on the tokens that chose it (not faster on a CPU).
      chat_template: a chat template in place of the one in the folder: `chatml` (or `qwen`),
        `llama3`, `gemma`, `mistral`, `plain`, or a file with a template in Jinja; None takes the
        one in the folder. An export has it.
      template: arguments of the chat template, such as `enable_thinking`.
      date: the date that the chat template sees, in ISO 8601, if it has one; None is today. A run
        records the date on which it began.
      lora: the adapters that are trained in place of the parameters; see `lora.py`.
      score_head: whether the model gets a score in place of its token head, for
        `update=reward_model`; a classifier of one label keeps its own. An export is a classifier.
    """

    path: ReadPath
    dtype: Literal["float32", "bfloat16"] = "float32"
    param_dtype: Literal["float32", "bfloat16", "nf4"] | None = "float32"
    remat: Remat = "elementwise"
    unroll: bool = False
    exact: bool = False
    attention: Choice = "auto"
    experts: Literal["dense", "grouped"] = "dense"
    chat_template: Key | ReadPath | None = None
    template: Mapping[str, Any] = field(default_factory=dict)
    date: str | None = None
    lora: LoRA = field(default_factory=LoRA)
    score_head: bool = False

    def __post_init__(self) -> None:
        check_adapter(self.path)  # before data are read, which can take minutes
        if self.param_dtype == "nf4" and not self.lora.rank:
            raise ValueError(
                "param_dtype=nf4 freezes the parameters, so that only adapters can be trained: set "
                "model.lora.rank."
            )
        if self.param_dtype == "nf4" and self.remat == "none":
            raise ValueError(
                "remat=none would keep the matrices of all layers at their full size, which "
                "param_dtype=nf4 avoids: choose model.remat=elementwise or layer."
            )

    def build(self, mesh: Mesh, key: Array) -> tuple[Policy, Params]:
        """Returns the policy and its trained parameters; `key` initializes new adapters."""
        policy, params = self.language_model(mesh, key)
        if not self.score_head:
            return policy, params
        return policy.with_score_head(params, placement.init)

    def language_model(self, mesh: Mesh, key: Array) -> tuple[Policy, Params]:
        """Returns the policy without a new score head."""
        files = model_files(self.path)
        policy = self.policy(files, mesh)
        merged = None if self.lora.rank else files.adapter
        params = read_params(files.weights, policy.decoder, self.param_dtype, mesh, merged)
        if not self.lora.rank:
            return policy, params
        adapted = files.adapter is not None
        policy = replace(policy, frozen=params, base=files.base, adapted=adapted)
        if files.adapter is None:
            return policy, placement.init(mesh, self.lora.init, key, params)
        shapes = jax.eval_shape(self.lora.init, key, params)
        return policy, begin(files.adapter, policy.decoder, shapes, mesh)

    def abstract(self, mesh: Mesh) -> tuple[Policy, Params]:
        """Returns the policy and the shapes and shardings of its parameters, without weights."""
        policy, params = self.abstract_language_model(mesh)
        if not self.score_head:
            return policy, params
        return policy.with_score_head(params, placement.shapes)

    def abstract_language_model(self, mesh: Mesh) -> tuple[Policy, Params]:
        """Returns `abstract` without a new score head."""
        files, key = model_files(self.path, weights=False), jax.random.key(0)
        policy = self.policy(files, mesh)
        dtype = self.param_dtype or "float32"  # weight files are not read here
        shapes = placement.shapes(mesh, policy.decoder.init, key)
        if dtype == "nf4":
            held = quantized_shapes(shapes)
            params = placement.with_shardings(held, placement.param_shardings(mesh, held))
        else:
            params = jax.tree.map_with_path(
                lambda path, x: x.update(dtype=held_dtype(path, dtype)), shapes
            )
        if not self.lora.rank:
            return policy, params
        adapters = placement.shapes(mesh, self.lora.init, key, params)
        if files.adapter is not None:
            check_begin(files.adapter, policy.decoder, adapters)
        return replace(policy, frozen=params, adapted=files.adapter is not None), adapters

    def policy(self, files: ModelFiles, mesh: Mesh) -> Policy:
        """Returns the policy without its parameters."""
        folder = files.weights
        config = read_config(folder)
        decoder = Decoder(
            config=config,
            dtype=self.dtype,
            remat=self.remat,
            unroll=self.unroll,
            exact=self.exact,
            experts=self.experts,
            attention=kernel_for(self.attention, config, self.dtype, mesh.platform),
            lora=self.lora,
            platform=mesh.platform,
        )
        if decoder.config.labels and not self.score_head:
            raise InputError(
                f"{folder} is a sequence classifier, which generates no tokens: use it as a reward "
                "(rl4p.reward.classifier.Classifier), not as a policy, or train it "
                "(model.score_head=true)."
            )
        if self.experts != "dense" and not decoder.config.experts:
            raise InputError(
                f"model.experts={self.experts} is for a model with experts, but {folder} has none: "
                "leave it out."
            )
        if self.param_dtype == "nf4" and decoder.config.experts:
            raise InputError(
                f"model.param_dtype=nf4 holds no experts in 4 bits, and {folder} has them: choose "
                "bfloat16."
            )
        mesh.check_divides(decoder.config.dimensions)
        own = None if self.chat_template is None else chat_template(self.chat_template)
        tokenizer: Any = load_tokenizer(
            files.tokenizer, own
        )  # Any, since stubs allow six types of token id
        check_template(tokenizer, self.template)
        if (date := date_of(tokenizer, self.date, "model.date")) is not None:
            set_clock(tokenizer, date)
        ends = read_end_ids(files, tokenizer, None if own is None else own.end)
        vocabulary = decoder.config.vocabulary
        for whose, largest in (
            (f"The tokenizer in {files.tokenizer}", max(tokenizer.get_vocab().values())),
            (f"eos_token_id in {folder}", max(ends)),
        ):
            if largest >= vocabulary:
                raise InputError(
                    f"{whose} has token {largest}, but the embedding has only "
                    f"{vocabulary} rows, numbered from 0."
                )
        if tokenizer.pad_token_id is None:  # as with Llama; padding is defined by masks
            log.warning(
                "The tokenizer in %s has no pad token: rows are padded with an end token.",
                files.tokenizer,
            )
        return Policy(
            decoder=decoder,
            tokenizer=tokenizer,
            mesh=mesh,
            end_ids=ends,
            pad_id=ends[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
            template=self.template,
            chat_template=None if own is None else own.source,
            date=date,
            kept=read_kept_keys(files),
            wrapper=folder if config.wrapper else None,
        )


def read_kept_keys(files: ModelFiles) -> dict[str, dict[str, Any]]:
    """Returns the keys of a model's configurations that an export keeps, by file."""
    paths = (files.weights / "config.json", files.generation)
    return {path.name: kept_keys(read_json(path)) for path in paths if path.is_file()}


def read_end_ids(files: ModelFiles, tokenizer: Any, end_of_message: str | None) -> tuple[int, ...]:
    """Returns all end tokens: of messages, the tokenizer's, and those of generation_config.json.

    As in transformers, config.json counts only where generation_config.json names none. The end
    token of messages comes first, because demonstrations end with the first.
    """
    named: list[int] = []
    for path in (files.generation, files.weights / "config.json"):
        content = read_json(path) if path.is_file() else {}
        if path == files.generation:
            check_keys(content, str(path))
        inner = content.get("text_config")
        inner = inner if isinstance(inner, dict) else {}
        ends = content.get("eos_token_id", inner.get("eos_token_id"))
        ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
        if not all(type(end) is int and end >= 0 for end in ends):
            raise InputError(
                f"{path}: eos_token_id must be a token id or a list of them, not {ends}."
            )
        if ends:
            named = ends
            break
    own = tokenizer.eos_token_id
    if not named and own is None:
        raise InputError(
            f"{files.tokenizer} defines no end token: add eos_token to tokenizer_config.json, or "
            "eos_token_id to generation_config.json."
        )
    first = tokenizer.get_vocab()[end_of_message] if end_of_message else own
    return tuple(dict.fromkeys(end for end in (first, own, *named) if end is not None))
