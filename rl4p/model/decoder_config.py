"""What a decoder is made of; each family of models is a choice among these options."""

from dataclasses import dataclass
from typing import Literal

from rl4p.model.rope import Scaling


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The shape and the options of a decoder.

    Attributes:
      family: the model type whose options these are; an export is written in its names.
      rope_theta, rope_scaling: of rotary embeddings; `local_rope_theta`, if any, is that of layers
        with a window, which are never scaled.
      centered_norm: norms multiply by 1 + scale.
      post_norms: attention and feed-forward have a norm behind them too, within the residual.
      query_key_norm: queries and keys are normed, each head by itself, before they are rotated.
      query_scalar: queries are scaled by its inverse root; None is the head's width.
      attention_softcap, logits_softcap: c in c tanh(x / c); None is no cap.
      window: tokens that a sliding layer sees, the present one included.
      sliding: whether each layer slides, L of them; empty if none does.
      scaled_embedding: embeddings are multiplied by the root of the width.
      experts: how many feed-forwards each layer has; 0 is one for all tokens.
      chosen_experts: how many of them serve a token.
      normalized_experts: the weights of the chosen ones sum to one.
      labels: scores that a classifier gives a text (`heads.scores`); it has no head of tokens. 0 is
        a language model.
    """

    vocabulary: int  # V
    width: int  # D
    layers: int  # L
    heads: int  # H
    key_value_heads: int  # K
    head_width: int  # h
    feed_forward_width: int
    max_positions: int
    family: str = "qwen2"
    rope_theta: float = 10_000.0
    rope_scaling: Scaling | None = None
    local_rope_theta: float | None = None
    norm_epsilon: float = 1e-6
    centered_norm: bool = False
    post_norms: bool = False
    query_key_norm: bool = False
    query_scalar: float | None = None
    attention_bias: bool = True
    attention_softcap: float | None = None
    logits_softcap: float | None = None
    window: int | None = None
    sliding: tuple[bool, ...] = ()
    activation: Literal["silu", "gelu_tanh"] = "silu"
    tied_embedding: bool = True
    scaled_embedding: bool = False
    experts: int = 0
    chosen_experts: int = 0
    normalized_experts: bool = False
    labels: int = 0

    def __post_init__(self) -> None:
        if self.sliding and (len(self.sliding) != self.layers or not self.window):
            raise ValueError(
                f"sliding names {len(self.sliding)} of {self.layers} layers, by a window of "
                f"{self.window}."
            )
        if self.chosen_experts > self.experts:
            raise ValueError(f"{self.chosen_experts} experts a token, of {self.experts}.")

    @property
    def dimensions(self) -> dict[str, int]:
        """Those that devices may divide (`partition.RULES`)."""
        return {
            "width": self.width,
            "vocabulary": self.vocabulary,
            "heads": self.heads,
            "key_value_heads": self.key_value_heads,
            "feed_forward": self.feed_forward_width,
        }

    @property
    def mixed(self) -> bool:
        """Some layers slide and others do not."""
        return len(set(self.sliding)) == 2
