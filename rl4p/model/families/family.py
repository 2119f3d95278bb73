"""The parts of a family: a reader and a writer of config.json, and a table of tensor names."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

import numpy as np

from rl4p.model.decoder import DecoderConfig
from rl4p.model.families.keys import Keys
from rl4p.model.pattern import layer_names as names_of_layer
from rl4p.model.pattern import places

T = TypeVar("T")


class TensorPart(NamedTuple):
    """The part of a tensor of the files that is one parameter, where a tensor has several.

    Attributes:
      axis: the axis of the tensor in the files that is divided.
      start, step: its first element along this axis, and the distance to the next one.
      size: the size of the tensor along this axis.
      run: how many neighbouring elements stand at each step, as the rows of a head.
    """

    axis: int
    start: int
    step: int
    size: int
    run: int = 1

    def whole(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape of the whole tensor, given the shape of the part."""
        return (*shape[: self.axis], self.size, *shape[self.axis + 1 :])

    def index_of(self, slices: tuple[slice, ...]) -> tuple[slice | np.ndarray, ...]:
        """Returns where a slice of the parameter stands in the tensor."""
        first, last = slices[self.axis].start, slices[self.axis].stop - 1
        index: slice | np.ndarray
        if self.run == 1:
            start, stop = (self.start + i * self.step for i in (first, last))
            index = slice(start, stop + 1, self.step)
        else:
            steps, places = np.divmod(np.arange(first, last + 1), self.run)
            index = self.start + steps * self.step + places
        return (*slices[: self.axis], index, *slices[self.axis + 1 :])


class Tensor(NamedTuple):
    """One tensor of a checkpoint.

    Attributes:
      path: the path of the parameter that contains it; an index in it selects a layer's tree.
      layer: its layer; None if it belongs to none. `Family.tensors` gives its index along the
        leading axis of the parameter instead.
      expert: its index along the axis after L; None if there is no such axis.
      name: its name in the files.
      transposed: whether it is [..., in, out] in the parameter and [..., out, in] in the files.
      part: the part of the tensor that is in this parameter; None if all of it is.
    """

    path: tuple[str | int, ...]
    layer: int | None
    expert: int | None
    name: str
    transposed: bool
    part: TensorPart | None = None

    def of_file(self, axes: tuple[T, ...]) -> tuple[T, ...]:
        """Returns what belongs to each axis of a parameter, in the order of the file's axes."""
        return (*axes[:-2], axes[-1], axes[-2]) if self.transposed else axes


@dataclass(frozen=True, kw_only=True)
class Family:
    """A model type of Hugging Face.

    Attributes:
      model_type, architecture, classifier: the names in config.json of the family, of its language
        model and of its classifier.
      read_config: a function from the keys of config.json to the decoder's configuration. It raises
        InputError, naming the key, for an unsupported option.
      write_config: a function that returns the keys of config.json for a decoder, without tokens
        and dtype.
      names: a function that yields every tensor of a checkpoint, in each of its parts.
      quantization: the method of quantized weights that can be read; None if there is none.
      unused: a regular expression of the names of tensors that the causal model lacks, such as
        those of heads that predict several tokens; `{layers}` is the number of layers, and
        `{shared}` those without keys and values of their own. They are left out.
    """

    model_type: str
    architecture: str
    classifier: str
    read_config: Callable[[Keys], DecoderConfig]
    write_config: Callable[[DecoderConfig], dict[str, Any]]
    names: Callable[[DecoderConfig], Iterator[Tensor]]
    quantization: str | None = None
    unused: str = ""

    def unused_names(self, c: DecoderConfig) -> str:
        """Returns `unused` for a model."""
        shared = "|".join(str(layer) for layer, kind in enumerate(c.kinds) if kind.shares)
        return self.unused.replace("{layers}", str(c.layers)).replace("{shared}", shared or "none")

    def tensors(self, c: DecoderConfig) -> Iterator[Tensor]:
        """Yields every tensor, in each of its parts, with its index in stacked parameters."""
        at = [dict(own) for own in places(c)]
        for tensor in self.names(c):
            if tensor.layer is None:
                yield tensor
            else:
                yield tensor._replace(layer=at[tensor.layer][str(tensor.path[1])])


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


# From a projection to the option that says whether it has a bias.
BIASES = {
    **dict.fromkeys(("query", "key", "value", "attention_gate"), "attention_bias"),
    "output": "output_bias",
    **dict.fromkeys(("gate", "up", "down"), "feed_forward_bias"),
}


def bias_names(
    c: DecoderConfig, layer_names: Mapping[tuple[str, ...], str]
) -> dict[tuple[str, ...], str]:
    """Returns the names of a layer's biases, which follow from those of the kernels."""
    return {
        (projection, "bias"): f"{layer_names[projection, 'kernel'].removesuffix('weight')}bias"
        for projection, option in BIASES.items()
        if getattr(c, option) and (projection, "kernel") in layer_names
    }


def names(
    c: DecoderConfig,
    layer_names: Mapping[tuple[str, ...], str],
    parts: Mapping[tuple[str, ...], TensorPart] | None = None,
) -> Iterator[Tensor]:
    """Yields every tensor of a checkpoint, given the names, and any parts, in a layer.

    A layer has the names of its kind only. The biases of the projections are added (`bias_names`).
    """
    kinds = [(kind.stack, {*names_of_layer(c, kind.structure)}) for kind in c.kinds]
    yield Tensor(("embedding",), None, None, "model.embed_tokens.weight", False)
    yield Tensor(("norm", "scale"), None, None, "model.norm.weight", False)
    if c.labels:
        yield Tensor(("score",), None, None, "score.weight", False)
    elif not c.tied_embedding:
        yield Tensor(("head",), None, None, "lm_head.weight", False)
    parts = parts or {}
    for path, name in {**layer_names, **bias_names(c, layer_names)}.items():
        part = parts.get(path, parts.get((*path[:-1], "kernel")))
        for layer, (stack, own) in enumerate(kinds):
            if path[0] not in own:
                continue
            whole, within = f"model.layers.{layer}.{name}", (stack, *path) if stack else path
            yield Tensor(("layers", *within), layer, None, whole, path[-1] == "kernel", part)


def rows(sizes: Mapping[tuple[str, ...], int]) -> dict[tuple[str, ...], TensorPart]:
    """Returns where kernels of these numbers of rows stand in a matrix that stacks them."""
    *starts, total = accumulate(sizes.values(), initial=0)
    return {path: TensorPart(0, start, 1, total) for path, start in zip(sizes, starts, strict=True)}
