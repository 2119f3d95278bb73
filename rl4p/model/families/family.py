"""What a family is: a reader and a writer of config.json, and a table of names."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from rl4p.model.decoder import DecoderConfig


class Tensor(NamedTuple):
    """One tensor of a checkpoint.

    Attributes:
      path: of the parameter that holds it.
      layer: where it stands along the parameter's leading axis L; None if it has no such axis.
      expert: where it stands along the axis after L; None if it has no such axis.
      name: in the files.
      transposed: kernels are [in, out] here and [out, in] in the files.
    """

    path: tuple[str, ...]
    layer: int | None
    expert: int | None
    name: str
    transposed: bool


@dataclass(frozen=True, kw_only=True)
class Family:
    """One model type of Hugging Face's.

    Attributes:
      model_type, architecture, classifier: its names in config.json: of the family, of a language
        model and of a classifier.
      read_config: (content of config.json, its path for errors) to the decoder's configuration;
        raises InputError that names the key it cannot follow.
      write_config: the keys of config.json that describe a decoder, without tokens and dtype.
      names: every tensor of a checkpoint.
    """

    model_type: str
    architecture: str
    classifier: str
    read_config: Callable[[dict[str, Any], str], DecoderConfig]
    write_config: Callable[[DecoderConfig], dict[str, Any]]
    names: Callable[[DecoderConfig], Iterator[Tensor]]
