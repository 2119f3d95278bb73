"""The check of the tensors in files against the parameters of a decoder."""

from collections.abc import Iterable
from functools import reduce
from operator import getitem
from pathlib import Path

import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.types import Params
from rl4p.model.families import Tensor
from rl4p.model.model_tensors import stacked_index
from rl4p.model.tensor_files import DTYPES, StoredTensor, listed

ROWS = 4096  # of an embedding to compare at a time
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
# The names of tensors that quantized weights have beside them, and the dtypes of such weights.
SCALES = (
    *("scale", "scales", "weight_scale", "weight_scale_inv", "input_scale", "k_scale", "v_scale"),
    *("scale_inv", "weight_scale_2", "weight_packed", "weight_shape", "weight_zero_point"),
    *("qweight", "qzeros", "g_idx", "absmax", "quant_map", "nested_absmax", "SCB", "biases"),
)
QUANTIZED = ("I8", "U8", "I32", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "F6_E2M3", "F6_E3M2")
# The parts of names that the wrappers of torch add: compiled, parallel, checkpointed.
WRAPPERS = ("_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def check_fit(
    folder: Path,
    stored: dict[str, StoredTensor],
    tensors: Iterable[Tensor],
    shapes: Params,
    *,
    tied: bool,
    complete: bool = True,
) -> None:
    """Checks the tensors of the files against the decoder's parameters before reading them.

    Args:
      folder, stored: the folder, and the tensors of its files.
      tensors: the tensors of the decoder, with their paths in `shapes`.
      shapes: the parameters, or their shapes.
      tied: whether the embedding is the token head, so that files may repeat it as the head.
      complete: whether no tensor may be missing.

    Raises:
      InputError: the weights are quantized, or have the names of a wrapped model; or tensors are
        missing, extra, of another shape or dtype (names the first of them); or a token head
        differs from the embedding that it should equal.
    """
    missing, problems = [], []
    known = {HEAD} if tied else set()
    for tensor in tensors:
        if tensor.part is not None and tensor.name in known:
            continue  # another part was checked
        known.add(tensor.name)
        in_file = stored.get(tensor.name)
        if in_file is None:
            missing += [tensor.name]
            continue
        shape = reduce(getitem, tensor.path, shapes).shape[len(stacked_index(tensor)) :]
        shape = shape[::-1] if tensor.transposed else shape
        shape = shape if tensor.part is None else tensor.part.whole(shape)
        if in_file.shape != shape:
            problems.append(f"{tensor.name} must have shape {shape}, not {in_file.shape}")
        if in_file.kind not in DTYPES:
            problems.append(f"{tensor.name} is {in_file.kind}, not one of {', '.join(DTYPES)}")
    extra = [
        name
        for name in stored
        if name not in known and not name.endswith("rotary_emb.inv_freq")  # follows from config
    ]
    if quantized := quantization(stored, extra):
        raise InputError(
            f"The weights in {folder} are quantized ({quantized}), which is not supported: use the "
            "folder of the model before it was quantized."
        )
    if extra and (wrapped := wrapped_name(extra, set(missing))):
        raise InputError(
            f"The weights in {folder} have other names than the model: {wrapped[0]} in place of "
            f"{wrapped[1]}; save the whole model without a wrapper (torch.compile, DDP, PEFT)."
        )
    problems = (
        [f"{name} is missing" for name in missing if complete]
        + problems
        + [f"{name} is not part of this model" for name in extra]
    )
    if problems:
        raise InputError(f"The weights in {folder} do not match the model: {listed(problems)}.")
    if tied and HEAD in stored and (not complete or EMBEDDING in stored):
        check_tied(folder, stored)


def quantization(stored: dict[str, StoredTensor], extra: Iterable[str]) -> str | None:
    """Returns a tensor that shows that weights are quantized, in words, or None."""
    for name in extra:
        if name.rpartition(".")[2] in SCALES:
            return name
    kinds = ((name, tensor.kind) for name, tensor in stored.items())
    return next((f"{name} is {kind}" for name, kind in kinds if kind in QUANTIZED), None)


def wrapped_name(extra: Iterable[str], missing: set[str]) -> tuple[str, str] | None:
    """Returns a tensor whose name has other parts around the name of a missing one, and the latter.

    Wrappers put parts before or into names; the decoder without its head lacks the first part.
    """
    for name in extra:
        parts = [part for part in name.split(".") if part not in WRAPPERS]
        parts = [part for part in parts if part != "base_layer"]  # of PEFT
        tails = (".".join(parts[first:]) for first in range(len(parts)))
        for tail in (f"model.{'.'.join(parts)}", *tails):
            if tail in missing:
                return name, tail
    return None


def check_tied(folder: Path, stored: dict[str, StoredTensor]) -> None:
    """Checks that the token head in the files is the embedding, which takes its place.

    Raises:
      InputError: it is not, or there is no embedding to compare it with.
    """
    embedding, head = stored.get(EMBEDDING), stored[HEAD]
    if embedding is not None and embedding.shape == head.shape and head.kind in DTYPES:
        blocks = (slice(at, min(at + ROWS, head.shape[0])) for at in range(0, head.shape[0], ROWS))
        if all(np.array_equal(values(embedding, x), values(head, x), True) for x in blocks):
            return
    raise InputError(
        f"{folder} has a {HEAD} that differs from {EMBEDDING}, although tie_word_embeddings makes "
        "them one: set it to false in config.json to use the head, or delete the head."
    )


def values(tensor: StoredTensor, rows: slice) -> np.ndarray:
    return np.concatenate([piece.astype(np.float32) for _, piece in tensor.pieces(rows)])
