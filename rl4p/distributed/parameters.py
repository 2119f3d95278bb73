"""What every parameter declares: its axes, and whether it is a matrix.

Sharding, weight decay and the optimizers that look at whole matrices are derived from this table. A
parameter that is not in it is refused, and not silently replicated or left undecayed: a critic of
your own adds what it trains to `DECLARED`, in the module that it stands in.
"""

from dataclasses import dataclass
from typing import Any

ADAPTERS = ("lora_a", "lora_b")  # they stand beside the kernel that they adapt


@dataclass(frozen=True)
class Parameter:
    """A parameter, by the end of its path.

    Attributes:
      axes: the names of its last axes (`partition.RULES`); None for one that is never divided. Axes
        in front of them (layers) are not divided either.
      matrix: whether it is a matrix, or a stack of them: those decay, and Muon takes them.
      inner: a matrix that maps neither from nor to the vocabulary or labels.
    """

    axes: tuple[str | None, ...]
    matrix: bool = True
    inner: bool = True


def vector(*axes: str | None) -> Parameter:
    return Parameter(axes, matrix=False, inner=False)


DECLARED: dict[str, Parameter] = {
    "embedding": Parameter(("vocabulary", "width"), inner=False),
    "head": Parameter(("vocabulary", "width"), inner=False),
    "score": Parameter((None, None), inner=False),
    "scale": vector(),
    "query/kernel": Parameter(("width", "heads")),
    "key/kernel": Parameter(("width", "key_value_heads")),
    "value/kernel": Parameter(("width", "key_value_heads")),
    "output/kernel": Parameter(("heads", "width")),
    "query/bias": vector("heads"),
    "key/bias": vector("key_value_heads"),
    "value/bias": vector("key_value_heads"),
    "gate/kernel": Parameter(("width", "feed_forward")),
    "up/kernel": Parameter(("width", "feed_forward")),
    "down/kernel": Parameter(("feed_forward", "width")),
    "experts/router": Parameter((None, None)),
    "experts/gate": Parameter((None, "width", "feed_forward")),
    "experts/up": Parameter((None, "width", "feed_forward")),
    "experts/down": Parameter((None, "feed_forward", "width")),
}


def declared(path: tuple[Any, ...]) -> Parameter:
    """Returns what the parameter at a path of a tree of parameters has declared.

    Raises:
      ValueError: it is not in the table.
    """
    *_, parent, name = ["", "", *names(path)]
    if name in ADAPTERS and (kernel := DECLARED.get(f"{parent}/kernel")):
        into, out = kernel.axes
        return Parameter((into, None) if name == "lora_a" else (None, out))
    found = DECLARED.get(f"{parent}/{name}", DECLARED.get(name))
    if found is None:
        raise ValueError(
            f"{'/'.join(names(path))} has not declared its axes: "
            "rl4p/distributed/parameters.py says how."
        )
    return found


def names(path: tuple[Any, ...]) -> list[str]:
    """Returns the keys of a path, as words."""
    return [str(getattr(key, "key", getattr(key, "name", ""))) for key in path]
