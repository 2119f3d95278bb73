"""The names of the tensors of experts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rl4p.model.decoder_config import DecoderConfig
from rl4p.model.families.family import Tensor, TensorPart

PROJECTIONS = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}


@dataclass(frozen=True, kw_only=True)
class ExpertNames:
    """The names of what a layer has for its experts, without the prefix "model.layers.<i>.".

    Attributes:
      router, correction: the matrix of the router, and what is added for the choice only.
      flat: the correction is [E] in the files, not [1, E].
      experts: the part before the number of an expert, or before the names of fused matrices.
      each: from a projection to its name in one expert.
      fused: the names of the matrices [E, 2 F, D] of gate and up, and [E, D, F] of down, in which
        all experts are stacked; None if there is a tensor for each expert.
      transposed: whether these are so in the files, not [E, D, 2 F] and [E, F, D].
      shared: the part before the projections of the shared experts.
      weight: the weight of the shared experts.
    """

    router: str = "mlp.gate.weight"
    correction: str = "mlp.gate.e_score_correction_bias"
    flat: bool = True
    experts: str = "mlp.experts"
    each: Mapping[str, str] = field(default_factory=lambda: PROJECTIONS)
    fused: tuple[str, str] | None = None
    transposed: bool = True
    shared: str = "mlp.shared_experts"
    weight: str = "mlp.shared_expert_gate.weight"

    def in_layer(self, c: DecoderConfig) -> dict[tuple[str, ...], str]:
        """Returns the names of the shared experts, for `family.names`."""
        if not c.shared_width:
            return {}
        names = {
            ("shared", path, "kernel"): f"{self.shared}.{name}.weight"
            for path, name in PROJECTIONS.items()
            if not (c.ungated and path == "gate")
        }
        return names | ({("shared", "weight"): self.weight} if c.weighted_shared else {})

    def tensors(self, c: DecoderConfig) -> Iterator[Tensor]:
        """Yields the tensors of the router and of the experts in all layers that have them."""
        for layer, kind in enumerate(c.kinds):
            if kind.feed_forward not in ("experts", "both"):
                continue
            start = f"model.layers.{layer}."
            experts = ("layers", *([kind.stack] if kind.stack else []), "experts")
            router = (*experts, "router")
            yield Tensor(router, layer, None, start + self.router, True)
            if c.router.corrected:
                path, row = (*experts, "router_correction"), 0 if self.flat else None
                yield Tensor(path, layer, row, start + self.correction, False)
            yield from self.of_layer(c, layer, start + self.experts, experts)

    def of_layer(
        self, c: DecoderConfig, layer: int, start: str, experts: tuple[str, ...]
    ) -> Iterator[Tensor]:
        """Yields the tensors of the experts of a layer."""
        if self.fused is None:
            for projection, name in self.each.items():
                for expert in range(c.experts):
                    path, whole = (*experts, projection), f"{start}.{expert}.{name}"
                    yield Tensor(path, layer, expert, f"{whole}.weight", True)
            return
        into, out = self.fused
        width = c.expert_width or c.feed_forward_width
        for i, projection in enumerate(("gate", "up")):
            part = TensorPart(1 if self.transposed else 2, i * width, 1, 2 * width)
            path, whole = (*experts, projection), f"{start}.{into}"
            yield Tensor(path, layer, None, whole, self.transposed, part)
        yield Tensor((*experts, "down"), layer, None, f"{start}.{out}", self.transposed)
