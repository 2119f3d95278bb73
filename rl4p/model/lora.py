"""Low-rank adapters: small matrices that are trained while the model's matrices are frozen."""

import math
import re
import zlib
from dataclasses import dataclass
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp

from rl4p.base.errors import InputError
from rl4p.base.types import Array, Params
from rl4p.configuration.bounds import AboveZero, Natural

PROJECTIONS = ("query", "key", "value", "output", "gate", "up", "down")
STACKS = ("full", "shares", "full_shares")
# From Hugging Face's modules, some of which hold several projections, to a regular expression of
# the paths of these, with a dot before each name.
MODULES = {
    "q_proj": r"(\.latent)?\.(query|attention_gate)",
    "k_proj": r"\.key",
    "v_proj": r"\.value",
    "o_proj": r"(\.latent)?\.output",
    "gate_proj": r"(\.shared)?\.gate",
    "up_proj": r"(\.shared)?\.up",
    "down_proj": r"(\.shared)?\.down",
    "qkv_proj": r"\.(query|key|value)",
    "gate_up_proj": r"\.(gate|up)",
    "in_proj_qkv": r"\.delta\.(query|key|value)",
    "in_proj_z": r"\.delta\.gate",
    "in_proj_b": r"\.delta\.strength",
    "in_proj_a": r"\.delta\.step",
    "in_proj_qkvz": r"\.delta\.(query|key|value|gate)",
    "in_proj_ba": r"\.delta\.(strength|step)",
    "in_proj": r"\.mamba\.(?!output).*|\.convolution\.(?!output$).*",
    "fc1_latent_proj": r"\.experts_input",
    "fc2_latent_proj": r"\.experts_output",
    "out_proj": r"\.(delta|mamba|convolution)\.output",
    "q_a_proj": r"\.latent\.query_down",
    "q_b_proj": r"\.latent\.query_up",
    "kv_a_proj_with_mqa": r"\.latent\.key_value_down",
    "kv_b_proj": r"\.latent\.key_value_up",
    "all-linear": ".*",
}


@dataclass(frozen=True, kw_only=True)
class LoRA:
    """Low-rank adaptation (2106.09685): W of a layer's projection is frozen, A and B are trained.

        y = x W + (alpha / rank) (x A) B

    A [in, rank] is initialized uniformly in +-1 / sqrt(in) and B [rank, out] with 0, so that the
    policy starts equal to its base. Adapters are float32 for any dtype of the base.

    Attributes:
      rank: the rank of the adapters; 0 trains all parameters and adds no adapters.
      alpha: the adapter's weight is alpha / rank.
      targets: the adapted projections: a regular expression for full names, or a list of names. The
        projections are query, key, value, output, gate, up and down, and those of other mixers,
        such as delta.query; Hugging Face's names, such as q_proj, are accepted too.
    """

    rank: Natural = 0
    alpha: AboveZero = 16.0
    targets: str | tuple[str, ...] = ".*"

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"targets={self.targets} is not a valid regex: {error}.") from None
        if self.rank == 0 and (self.alpha, self.targets) != (LoRA.alpha, LoRA.targets):
            raise ValueError(
                "alpha and targets have no effect with rank=0, which adds no adapter: set rank."
            )

    @property
    def pattern(self) -> str:
        """The regular expression of the names in `targets`."""
        names = (self.targets,) if isinstance(self.targets, str) else self.targets
        names = [re.sub(r"[\w-]+", lambda word: MODULES.get(word[0], word[0]), x) for x in names]
        return "|".join(names)

    @property
    def scale(self) -> float:
        return self.alpha / max(self.rank, 1)

    def init(self, key: Array, base: Params) -> Params:
        """Returns new adapters for the projections of `base`, as a separate tree."""
        names = projections(base["layers"])
        kernels = {
            path: kernel
            for path, kernel in names.items()
            if any(re.fullmatch(self.pattern, name) for name in spellings(path))
        }
        if not kernels:
            raise InputError(
                f"model.lora.targets={self.targets} matches no projection of this model, which has "
                f"{', '.join(map('.'.join, names))}."
            )

        layers: Params = {}
        for path, kernel in kernels.items():
            L, D, F = kernel.shape
            bound = 1 / math.sqrt(D)
            usual = len(path) == 1 and path[0] in PROJECTIONS
            number = PROJECTIONS.index(path[0]) if usual else zlib.crc32(".".join(path).encode())
            own = jax.random.fold_in(key, number)
            reduce(lambda tree, name: tree.setdefault(name, {}), path, layers).update(
                lora_a=jax.random.uniform(own, (L, D, self.rank), minval=-bound, maxval=bound),
                lora_b=jnp.zeros((L, self.rank, F)),
            )
        return {"layers": layers}


def spellings(path: tuple[str, ...]) -> tuple[str, str, str]:
    """Returns what a target may call a projection: by its name, its path, or as `MODULES` do.

    The name of a stack of layers (`LayerKind.stack`) is no part of the path: q_proj is in each.
    """
    dotted = ".".join(path[1:] if path[0] in STACKS else path)
    return path[-1], dotted, f".{dotted}"


def projections(layers: Params) -> dict[tuple[str, ...], Array]:
    """Returns the stacked kernels of a model's projections, by their paths within a layer.

    `PROJECTIONS` come first, in their order, and then those of other mixers.
    """
    found = {}
    for name, tree in layers.items():
        if not isinstance(tree, dict):
            continue
        if "kernel" in tree:
            found[(name,)] = tree["kernel"]
        else:
            found |= {(name, *path): x for path, x in projections(tree).items()}
    order: dict[tuple[str, ...], int] = {(name,): i for i, name in enumerate(PROJECTIONS)}
    return dict(sorted(found.items(), key=lambda item: order.get(item[0], len(order))))


def merge_trees(frozen: Params, trained: Params) -> Params:
    """Merges two trees that have no leaf in common."""
    if not frozen:
        return trained
    joined: dict[str, Any] = dict(frozen)
    for name, child in trained.items():
        joined[name] = merge_trees(frozen[name], child) if name in frozen else child
    return joined


def merged_kernel(kernel: Array, lora_a: Array, lora_b: Array, scale: float) -> Array:
    """Returns W + scale A B in float32."""
    product = jnp.matmul(lora_a, lora_b, precision=jax.lax.Precision.HIGHEST)
    return kernel.astype(jnp.float32) + scale * product
