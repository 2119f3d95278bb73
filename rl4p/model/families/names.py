"""The tensor names that most families share."""

from collections.abc import Iterator, Mapping
from itertools import accumulate

from rl4p.model.decoder import DecoderConfig
from rl4p.model.families.family import Tensor, TensorPart

# From a parameter of a layer to its name in the files, without the prefix "model.layers.<i>.".
LAYER_NAMES = {
    ("attention_norm", "scale"): "input_layernorm.weight",
    ("feed_forward_norm", "scale"): "post_attention_layernorm.weight",
    ("query", "kernel"): "self_attn.q_proj.weight",
    ("key", "kernel"): "self_attn.k_proj.weight",
    ("value", "kernel"): "self_attn.v_proj.weight",
    ("output", "kernel"): "self_attn.o_proj.weight",
    ("gate", "kernel"): "mlp.gate_proj.weight",
    ("up", "kernel"): "mlp.up_proj.weight",
    ("down", "kernel"): "mlp.down_proj.weight",
}


def names(
    c: DecoderConfig,
    layer_names: Mapping[tuple[str, ...], str],
    parts: Mapping[tuple[str, ...], TensorPart] | None = None,
) -> Iterator[Tensor]:
    """Yields every tensor of a checkpoint, given the table of names in one layer.

    Args:
      parts: the parts of tensors that are several parameters of a layer.
    """
    yield Tensor(("embedding",), None, None, "model.embed_tokens.weight", False)
    yield Tensor(("norm", "scale"), None, None, "model.norm.weight", False)
    if c.labels:
        yield Tensor(("score",), None, None, "score.weight", False)
    elif not c.tied_embedding:
        yield Tensor(("head",), None, None, "lm_head.weight", False)
    for path, name in layer_names.items():
        part = (parts or {}).get(path)
        for layer in range(c.layers):
            whole = f"model.layers.{layer}.{name}"
            yield Tensor(("layers", *path), layer, None, whole, path[-1] == "kernel", part)


def rows(sizes: Mapping[tuple[str, ...], int]) -> dict[tuple[str, ...], TensorPart]:
    """Returns where each kernel stands in a matrix that stacks the rows of several kernels.

    Args:
      sizes: the number of rows of each kernel, in the order of the matrix.
    """
    starts = accumulate(sizes.values(), initial=0)
    total = sum(sizes.values())
    return {
        path: TensorPart(0, start, 1, total) for path, start in zip(sizes, starts, strict=False)
    }
