"""The parts of a family: a reader and a writer of config.json, and a table of tensor names."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from rl4p.model.decoder import DecoderConfig


class Tensor(NamedTuple):
    """One tensor of a checkpoint.

    Attributes:
      path: the path of the parameter that contains it; an index in it selects a layer's tree.
      layer: its index along the parameter's leading axis L; None if there is no such axis.
      expert: its index along the axis after L; None if there is no such axis.
      name: its name in the files.
      transposed: whether it is [in, out] in the parameter and [out, in] in the files.
    """

    path: tuple[str | int, ...]
    layer: int | None
    expert: int | None
    name: str
    transposed: bool


@dataclass(frozen=True, kw_only=True)
class Family:
    """A model type of Hugging Face.

    Attributes:
      model_type, architecture, classifier: the names in config.json of the family, of its language
        model and of its classifier.
      read_config: a function from config.json's content, and its path for errors, to the decoder's
        configuration. It raises InputError, naming the key, for an unsupported option.
      write_config: a function that returns the keys of config.json for a decoder, without tokens
        and dtype.
      names: a function that yields every tensor of a checkpoint.
    """

    model_type: str
    architecture: str
    classifier: str
    read_config: Callable[[dict[str, Any], str], DecoderConfig]
    write_config: Callable[[DecoderConfig], dict[str, Any]]
    names: Callable[[DecoderConfig], Iterator[Tensor]]
