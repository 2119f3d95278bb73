"""A table of all parameters: the axes of each, and whether it is a matrix.

Sharding, weight decay and the choice of parameters for matrix optimizers are derived from this
table. A parameter that is not in the table is an error, so that it is never silently replicated or
left undecayed. A critic of your own adds its parameters to `DECLARED` in its own module.
"""

from dataclasses import dataclass
from typing import Any

from rl4p.base.errors import InputError

ADAPTERS = ("lora_a", "lora_b")  # siblings of the kernel that they adapt
PACKED = ("codes", "scales")  # of a kernel in 4 bits (`rl4p.model.quantization`)


@dataclass(frozen=True)
class Parameter:
    """The properties of a parameter, which is identified by the end of its path.

    Attributes:
      axes: the names of its last axes (`partition.RULES`); None for an axis that is never sharded.
        Leading axes, such as the axis of stacked layers, are never sharded.
      matrix: whether it is a matrix or a stack of matrices; only matrices have weight decay.
      inner: whether it is a matrix that maps neither from nor to the vocabulary or labels; Muon
        takes only these.
      narrowed: whether it may be held in the dtype of activations where it is used.
    """

    axes: tuple[str | None, ...]
    matrix: bool = True
    inner: bool = True
    narrowed: bool = True


def vector(*axes: str | None) -> Parameter:
    return Parameter(axes, matrix=False, inner=False)


DECLARED: dict[str, Parameter] = {
    "embedding": Parameter(("vocabulary", "width"), inner=False),
    "head": Parameter(("vocabulary", "width"), inner=False),
    "score": Parameter((None, None), inner=False),
    "scale": vector(),
    "query/kernel": Parameter(("width", "heads")),
    "key/kernel": Parameter(("width", "num_kv_heads")),
    "value/kernel": Parameter(("width", "num_kv_heads")),
    "output/kernel": Parameter(("heads", "width")),
    "query/bias": vector("heads"),
    "key/bias": vector("num_kv_heads"),
    "value/bias": vector("num_kv_heads"),
    "output/bias": vector(),
    "sinks": vector("heads"),
    "gate/kernel": Parameter(("width", "feed_forward")),
    "up/kernel": Parameter(("width", "feed_forward")),
    "down/kernel": Parameter(("feed_forward", "width")),
    "experts/router": Parameter((None, None)),
    "experts/gate": Parameter(("experts", "width", None)),
    "experts/up": Parameter(("experts", "width", None)),
    "experts/down": Parameter(("experts", None, "width")),
    "experts/router_bias": vector(None),
    "experts/gate_bias": vector("experts", None),
    "experts/up_bias": vector("experts", None),
    "experts/down_bias": vector("experts", None),
}


def declared(path: tuple[Any, ...]) -> Parameter:
    """Returns the declaration of the parameter at a path of the parameter tree.

    Raises:
      InputError: the parameter is not in the table.
    """
    *_, owner, parent, name = ["", "", "", *names(path)]
    if name in PACKED and (kernel := DECLARED.get(f"{owner}/{parent}")):
        return Parameter(kernel.axes, narrowed=False)
    if name in ADAPTERS and (kernel := DECLARED.get(f"{parent}/kernel")):
        into, out = kernel.axes
        return Parameter((into, None) if name == "lora_a" else (None, out))
    parameter = DECLARED.get(f"{parent}/{name}", DECLARED.get(name))
    if parameter is None:
        raise InputError(
            f"The parameter {'/'.join(names(path))} has no declared axes: add it to "
            "rl4p.distributed.parameters.DECLARED where it is defined."
        )
    return parameter


def names(path: tuple[Any, ...]) -> list[str]:
    """Returns the keys of a path as strings."""
    return [str(getattr(key, "key", getattr(key, "name", ""))) for key in path]
