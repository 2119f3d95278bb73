"""Adapters in the format of PEFT: their files, and what they do to the tensors of their base.

    W' = W + s B A        A [rank, in], B [out, rank], s = lora_alpha / rank, or / sqrt(rank)

A folder has adapter_config.json, which names the base model, and adapter_model.safetensors. The
format was read from PEFT 0.21.
"""

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import isfinite, sqrt
from pathlib import Path
from typing import Any

from rl4p.base.errors import InputError
from rl4p.model.adapter_experts import expert_changes, in_files
from rl4p.model.adapter_matrices import Change, ChangedTensor, LowRank
from rl4p.model.families.wrappers import plain_name
from rl4p.model.folder import (
    ADAPTER,
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    GENERATION,
    HARMLESS_FILES,
    HUB_ID,
    TOKENIZER_FILES,
    file_names,
    matching,
)
from rl4p.model.model_tensors import EMBEDDING, HEAD
from rl4p.model.tensor_files import (
    DTYPES,
    INDEX,
    SINGLE,
    StoredTensor,
    listed,
    read_header,
    read_json,
)

log = logging.getLogger(__name__)

PREFIX = "base_model.model."  # of the names of all tensors
MATRICES = {
    ".lora_A.weight": "a",
    ".lora_B.weight": "b",
    ".lora_B.bias": "bias",
    ".lora_embedding_A": "embedding_a",
    ".lora_embedding_B": "embedding_b",
}
READ = (
    *("peft_type", "task_type", "base_model_name_or_path", "revision", "r", "lora_alpha"),
    *("rank_pattern", "alpha_pattern", "use_rslora", "init_lora_weights"),
)
# What they say is in the tensors too, or was of the training alone.
HARMLESS = (
    *("auto_mapping", "peft_version", "inference_mode", "lora_dropout", "bias", "lora_bias"),
    *("target_modules", "exclude_modules", "target_parameters", "modules_to_save"),
    *("layers_to_transform", "layers_pattern", "megatron_core", "runtime_config"),
    *("qalora_group_size", "eva_config", "ensure_weight_tying"),
)
# The others subtract the first adapter from the base, which PEFT repeats when it reads the folder.
STARTS = (True, False, "gaussian", "eva", "orthogonal", "mica")
READ_BESIDE = (*TOKENIZER_FILES, GENERATION)
MERGE = "merge it into its base model with PEFT's merge_and_unload, and give the merged folder"
QUANTIFIERS = 4  # in one pattern: more can take any time


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """An adapter whose matrices have not been read yet.

    Attributes:
      base: the folder or hub id of the base model.
      config: the content of adapter_config.json.
      matrices: its matrices by the name of the module in the base model.
      whole: the tensors that replace those of the base, by their names there.
    """

    folder: Path
    base: str
    config: Mapping[str, Any]
    matrices: Mapping[str, LowRank]
    whole: Mapping[str, StoredTensor]

    def scale(self, key: str, rank: int) -> float:
        """Returns the factor of a module's matrices.

        Raises:
          InputError: adapter_config.json has another rank for it.
        """
        c = self.config
        said = in_patterns(c.get("rank_pattern") or {}, key, c["r"])
        if said != rank:
            raise InputError(
                f"{self.folder} has matrices of rank {rank} for {key}, but {ADAPTER_CONFIG} says "
                f"{said}."
            )
        alpha = in_patterns(c.get("alpha_pattern") or {}, key, c["lora_alpha"])
        return alpha / (sqrt(rank) if c.get("use_rslora") else rank)

    def changed(self, stored: dict[str, StoredTensor], *, tied: bool) -> dict[str, StoredTensor]:
        """Returns the tensors of the base model, changed by the adapter when they are read.

        Args:
          tied: whether the embedding of the base is its token head.

        Raises:
          InputError: the adapter does not fit the tensors.
        """
        self.check_tied(tied=tied)
        result = {name: self.whole.get(name, tensor) for name, tensor in stored.items()}
        problems = [
            f"{name} {f'must have shape {own.shape}, not {x.shape}' if own else 'is not in it'}"
            for name, x in self.whole.items()
            if (own := stored.get(name)) is None or own.shape != x.shape
        ]
        for module, matrices in self.matrices.items():
            changes = dict(self.changes(module, matrices, stored))
            if not changes:
                problems += [f"{module} is no matrix of it with {matrices}"]
            for name, change in changes.items():
                result[name] = ChangedTensor.of(result[name], change)
        if problems:
            raise InputError(
                f"{self.folder} does not fit its base model {self.base}: {listed(problems)}."
            )
        return result

    def changes(
        self, module: str, matrices: LowRank, stored: Mapping[str, StoredTensor]
    ) -> Iterator[tuple[str, Change]]:
        """Yields the names of the tensors that a module's matrices change, and their changes."""
        names = (f"{module}.weight", f"{in_files(module)}.weight")
        name = next((each for each in names if each in stored), None)
        if name is None:
            version = self.config.get("peft_version")
            yield from expert_changes(module, matrices, stored, self.scale, version)
        elif stored[name].shape == matrices.shape and (
            matrices.bias is None or f"{module}.bias" in stored
        ):
            self.check_router(module)
            scale = self.scale(module, matrices.rank)
            yield name, partial(matrices.product, scale=scale)
            if matrices.bias is not None:
                yield f"{module}.bias", partial(matrices.bias_rows, scale=scale)

    def check_tied(self, *, tied: bool) -> None:
        """Raises InputError if an adapter changes the embedding or the head, which are one."""
        touched = [name for name in (EMBEDDING, HEAD) if self.touches(name)]
        if tied and touched and not {EMBEDDING, HEAD} <= self.whole.keys():
            raise InputError(
                f"{self.folder} has another {' and '.join(touched)}, but its base model "
                f"{self.base} has one matrix for both (tie_word_embeddings): untie them in the "
                "base, and adapt that."
            )

    def touches(self, name: str) -> bool:
        return name in self.whole or name.removesuffix(".weight") in self.matrices

    def check_router(self, module: str) -> None:
        """Refuses patterns that PEFT may match with the name of the module or of its parameter."""
        patterns = (self.config.get(key) or {} for key in ("rank_pattern", "alpha_pattern"))
        if module.endswith((".gate", ".router")) and any(
            in_patterns(each, module, None) != in_patterns(each, f"{module}.weight", None)
            for each in patterns
        ):
            raise InputError(f"{self.folder} has a pattern for the router {module}: {MERGE}.")


def read_adapter(folder: Path) -> Adapter:
    """Returns the adapter in a folder, without reading its matrices.

    Raises:
      InputError: files are missing or broken, or the adapter is of a kind that is not supported.
    """
    check_files_of_adapter(folder)
    config = read_json(folder / ADAPTER_CONFIG)
    check_config(config, folder)
    name, revision = config["base_model_name_or_path"], config.get("revision")
    parts: dict[str, dict[str, StoredTensor]] = {}
    whole = {}
    for full, tensor in read_header(folder / ADAPTER_WEIGHTS).items():
        inside = full.removeprefix(PREFIX)
        own = plain_name(inside) or inside
        end = next((end for end in MATRICES if own.endswith(end)), "")
        if inside == full or tensor.kind not in DTYPES or ("lora_" in own and not end):
            raise InputError(
                f"{folder / ADAPTER_WEIGHTS} has {full} ({tensor.kind}), which is not read: "
                f"{MERGE}."
            )
        if end:
            parts.setdefault(own.removesuffix(end), {})[MATRICES[end]] = tensor
        else:
            whole[own.replace(".base_layer.", ".")] = tensor
    return Adapter(
        folder=folder,
        base=f"{name}@{revision}" if revision and on_the_hub(name) else name,
        config=config,
        matrices={module: low_rank(folder, module, x) for module, x in parts.items()},
        whole=whole,
    )


def on_the_hub(name: str) -> bool:
    """Returns whether a name without a revision is that of a model on the hub."""
    return bool(HUB_ID.fullmatch(name)) and "@" not in name and not Path(name).is_dir()


def low_rank(folder: Path, module: str, parts: Mapping[str, StoredTensor]) -> LowRank:
    """Returns the matrices of a module; raises InputError unless they are a pair."""
    embedding = "embedding_a" in parts or "embedding_b" in parts
    names = ("embedding_b", "embedding_a") if embedding else ("a", "b")  # both are transposed
    if parts.keys() - {"bias"} == {*names}:
        a, b = (parts[name] for name in names)
        matrices = LowRank(a=a, b=b, bias=parts.get("bias"), transposed=embedding)
        if matrices.fits:
            return matrices
    raise InputError(f"{folder / ADAPTER_WEIGHTS} has no pair of matrices A and B for {module}.")


def check_files_of_adapter(folder: Path) -> None:
    """Raises InputError unless a folder has the two files of PEFT, and no weights beside them."""
    names = file_names(folder)
    if ADAPTER_CONFIG in names and ADAPTER_WEIGHTS in names and not {SINGLE, INDEX} & {*names}:
        known = (
            *READ_BESIDE,
            ADAPTER_CONFIG,
            ADAPTER_WEIGHTS,
            *(x for group in HARMLESS_FILES.values() for x in group),
        )
        others = [name for name in names if name not in matching(names, known)]
        if others:
            log.warning("%s has files that are not read: %s.", folder, ", ".join(others))
        return
    if weights := [name for name in names if name in (SINGLE, INDEX)]:
        raise InputError(
            f"{folder} has an adapter ({', '.join(matching(names, ADAPTER))}) beside the weights "
            f"of a model ({weights[0]}): put them into two folders."
        )
    raise InputError(
        f"{folder} has an adapter ({', '.join(matching(names, ADAPTER))}), but only "
        f"{ADAPTER_CONFIG} with {ADAPTER_WEIGHTS} is read: save it with PEFT's save_pretrained."
    )


def check_config(config: Mapping[str, Any], folder: Path) -> None:
    """Raises InputError unless an adapter_config.json describes what is read.

    Every other key that is set could change the numbers, also one that this PEFT does not have.
    """
    where, base = folder / ADAPTER_CONFIG, config.get("base_model_name_or_path")
    if config.get("peft_type") != "LORA":
        raise InputError(f"{where}: peft_type {config.get('peft_type')!r} is not LORA: {MERGE}.")
    others = {key: x for key, x in config.items() if key not in (*READ, *HARMLESS)}
    if unread := [
        f"{key}={x!r}" for key, x in others.items() if x not in (None, False, [], {}, "")
    ]:
        raise InputError(f"{where}: {unread[0]:.80} is not read: {MERGE}.")
    if (start := config.get("init_lora_weights", True)) not in STARTS:
        raise InputError(
            f"{where}: with init_lora_weights={start!r} the matrices are not the difference from "
            f"{base}, of which PEFT repeats a decomposition: {MERGE}."
        )
    if not isinstance(base, str) or not base:
        raise InputError(f"{where} names no base_model_name_or_path: write the model's name.")
    numbers: list[tuple[str, Any]] = [(key, config.get(key)) for key in ("r", "lora_alpha")]
    for key in ("rank_pattern", "alpha_pattern"):
        patterns = config.get(key) or {}
        if not isinstance(patterns, dict):
            raise InputError(f"{where}: {key} must be an object, not {patterns!r}.")
        numbers += [(f"{key} {pattern}", x) for pattern, x in patterns.items()]
        for pattern in patterns:
            check_pattern(pattern, where)
    for key, x in numbers:
        if type(x) not in (int, float) or not isfinite(x):
            raise InputError(f"{where}: {key} must be a number, not {x!r}.")


def check_pattern(pattern: str, where: Path) -> None:
    """Raises InputError for a pattern that is broken, or that could take any time to match."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise InputError(f"{where}: {pattern!r} is not a regular expression: {error}.") from None
    if re.search(r"\)[*+{]", pattern) or len(re.findall(r"[*+{?]", pattern)) > QUANTIFIERS:
        raise InputError(
            f"{where}: the pattern {pattern!r:.80} repeats a group, or has more than {QUANTIFIERS} "
            "repetitions, which can take any time: write the names of its modules."
        )


def in_patterns(patterns: Mapping[str, Any], key: str, other: Any) -> Any:
    """Returns the value of the first pattern that matches the end of a name, as in PEFT."""
    found = (x for each, x in patterns.items() if re.match(rf"(.*\.)?({each})$", key))
    return next(found, other)
