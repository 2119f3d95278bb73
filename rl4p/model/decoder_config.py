"""The configuration of a decoder; each model family is a choice among these options."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

from rl4p.model.rope import Scaling
from rl4p.model.router import PLAIN, Router

Mixer = Literal["attention", "latent", "delta", "mamba", "convolution", "none"]
FeedForward = Literal["gated", "experts", "both", "none"]
WITH_STATE = {"delta", "mamba", "convolution"}  # whose memory is a state, not a list of tokens


class LayerKind(NamedTuple):
    """The properties that may differ among the layers of a decoder.

    Attributes:
      slides, unrotated: of the layer's attention (`DecoderConfig`).
      mixer: what moves information between tokens.
      feed_forward: what follows it; `both` is a gated one with experts beside it.
      full: it has the heads of `DecoderConfig.full`.
      shares: it has the keys and values of an earlier layer (`SharedKeys`).
    """

    slides: bool
    unrotated: bool
    mixer: Mixer = "attention"
    feed_forward: FeedForward = "gated"
    full: bool = False
    shares: bool = False

    @property
    def structure(self) -> "LayerKind":
        """The kind without what the parameters of a layer do not depend on."""
        return self._replace(slides=False, unrotated=False)

    @property
    def stack(self) -> str:
        """The name of the parameters of a layer whose shapes differ from those of others."""
        return "_".join(name for name in ("full", "shares") if getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class KeyHeads:
    """The shape of the heads of a layer's attention.

    Attributes:
      head_width, num_kv_heads: as of `DecoderConfig`.
      keys_as_values: values are the projected keys, before their norm and rotation.
    """

    head_width: int
    num_kv_heads: int
    keys_as_values: bool = False


@dataclass(frozen=True, kw_only=True)
class SharedKeys:
    """The last layers, which have no keys and values of their own (2405.12981).

    Each attends with the keys and values of the last layer before them that slides, or not, as it
    does.

    Attributes:
      layers: the number of these layers.
      feed_forward_width: the width of their feed-forward.
    """

    layers: int
    feed_forward_width: int


@dataclass(frozen=True, kw_only=True)
class MambaConfig:
    """The options of Mamba-2 (`mixers.mamba`).

    Attributes:
      heads, head_width: of the values; each head has a state of head_width x state.
      groups: the number of groups of heads; the heads of a group share queries and keys.
      state: the width of queries and keys.
      kernel: the number of tokens in a window of the convolution.
      projection_bias, convolution_bias: projections and convolutions have biases.
      least_step, most_step: steps are cut at these limits.
    """

    heads: int
    head_width: int
    groups: int
    state: int
    kernel: int = 4
    projection_bias: bool = False
    convolution_bias: bool = True
    least_step: float = 0.0
    most_step: float = math.inf


@dataclass(frozen=True, kw_only=True)
class ConvolutionConfig:
    """The options of gated convolutions (`mixers.gated_convolution`).

    Attributes:
      kernel: the number of tokens in a window.
      bias: projections and the convolution have biases.
    """

    kernel: int = 3
    bias: bool = False


@dataclass(frozen=True, kw_only=True)
class LatentConfig:
    """The options of latent attention (`mixers.latent`), beside heads and `rotary_width`.

    Attributes:
      rank: the size of the latent of keys and values.
      query_rank: the size of the latent of queries; None if they have none.
      unrotated_width, rotated_width: the sizes of the two parts of a query and of a key.
      value_width: the size of a value.
      score_growth: with YaRN of factor f, scores grow by (1 + 0.1 score_growth ln f)^2.
      query_growth: with YaRN of n original positions, the queries of position p grow by
        1 + query_growth ln(1 + floor(p / n)).
    """

    rank: int
    query_rank: int | None
    unrotated_width: int
    rotated_width: int
    value_width: int
    score_growth: float = 0.0
    query_growth: float = 0.0


@dataclass(frozen=True, kw_only=True)
class DeltaConfig:
    """The options of gated delta networks (`mixers.delta`).

    Attributes:
      key_heads, key_width: of queries and keys.
      value_heads, value_width: of values; neighbouring heads share a head of queries and keys.
      kernel: the number of tokens in a window of the convolution.
    """

    key_heads: int
    value_heads: int
    key_width: int
    value_width: int
    kernel: int = 4

    def __post_init__(self) -> None:
        if self.value_heads % self.key_heads:
            raise ValueError(
                f"value_heads {self.value_heads} must be a multiple of key_heads {self.key_heads}."
            )


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The shape and the options of a decoder.

    Attributes:
      family: the model type; an export uses its names.
      wrapper: the model type of several modalities whose text model it is (`families.wrappers`);
        empty if it stands alone.
      rope_theta, rope_scaling: the base and scaling of rotary embeddings.
      rotary_width: how many elements of a head are rotated, the first ones; None is all.
      interleaved_rope: a rotated pair has neighbouring elements, not one of either half.
      unrotated: for each of L layers, whether it has no rotary embeddings; empty if all have.
      local_rope_theta: the base in sliding layers, which then have no scaling; None uses
        `rope_theta` and `rope_scaling` there too.
      centered_norm: norms multiply by 1 + scale.
      mean_norm: norms subtract the mean first.
      pre_norms, post_norms: the inputs of attention and feed-forward are normed, and their outputs
        before the residual sum.
      parallel: the feed-forward has the normed input of the mixer, and no norm before it.
      query_key_norm: queries and keys are normed before they are rotated, in each head (`head`) or
        over all heads (`whole`), or after it in each head (`rotated`).
      query_scalar: queries are divided by its square root; None is the head width.
      normed_rotations: queries and keys that are rotated are normed after it in each head, without
        a weight.
      query_growth: as of `LatentConfig`, for other attention.
      query_growth_step: without YaRN, n of the growth of queries in layers that are not rotated, at
        position p by 1 + query_growth ln(1 + floor((p + 1) / n)) (2501.19399); 0 if there is none.
      attention_bias, output_bias: queries, keys and values have biases; so has their output.
      feed_forward_bias: the projections of the feed-forward have biases.
      attention_gate: the results of attention are multiplied by sigmoid(x W), elementwise.
      attention_sinks: each head has a score for nothing, which takes part in the softmax.
      attention_softcap, logits_softcap: c in c tanh(x / c); None applies no cap.
      window: the number of tokens that a sliding layer sees, the present token included.
      sliding: for each of L layers, whether it has a sliding window; empty if none has.
      chunked: positions are divided into chunks as long as a window, and a sliding layer sees the
        tokens of its chunk, not those of a window.
      full: the heads of layers that do not slide; None if they are those of the others.
      sharing: the last layers, which have the keys and values of earlier ones; None if there are
        none.
      normed_values: values are normed in each head, without a weight.
      mixers: for each of L layers, its mixer; empty if all have attention.
      feed_forwards: for each of L layers, its feed-forward; empty if all have `experts`, where the
        model has any, or else a gated one.
      activation: the feed-forward of gate g and up u: `silu`, `gelu_tanh` and `relu2` (the square
        of relu) are act(g) u, and `clamped_swish` is g sigmoid(1.702 g) (u + 1), with g cut at 7
        and u at -7 and 7; `xielu` is `experts.XIELU`, which has no gate.
      ungated: the feed-forward has no gate, and is act(u).
      scaled_embedding: embeddings are multiplied by the square root of the width.
      embedding_multiplier, residual_multiplier, logits_multiplier: the factors of embeddings, of
        what attention and feed-forward add to the residual sum, and of logits before their cap.
      per_layer_width: the width of the input that each layer has of its own
        (`per_layer_inputs.py`); 0 if there is none.
      scaled_layers: each layer multiplies its result by a number, a constant in training.
      experts: the number of experts per layer; 0 is one feed-forward for all tokens.
      chosen_experts: the number of experts per token.
      expert_bias: the router and the experts have biases.
      normalized_experts: the weights of a token's chosen experts sum to one.
      router: the other options of the choice of experts.
      expert_width: the width of one expert; None is `feed_forward_width`.
      expert_input: the width of the inputs and outputs of experts, between two projections of all
        experts (2512.20856); None is the width of the model, and no projection.
      shared_width: the width of the experts that every token uses, of which several are one
        feed-forward; 0 if there are none.
      weighted_shared: their output is multiplied by sigmoid(x w).
      mamba, convolution, latent, delta: the options of these mixers; None if no layer has them.
      labels: the number of scores of a classifier (`heads.scores`), which has no token head; 0 for
        a language model.
    """

    vocabulary: int  # V
    width: int  # D
    layers: int  # L
    heads: int  # H
    num_kv_heads: int  # K
    head_width: int  # h
    feed_forward_width: int
    max_positions: int
    family: str = "qwen2"
    wrapper: str = ""
    rope_theta: float = 10_000.0
    rope_scaling: Scaling | None = None
    rotary_width: int | None = None
    interleaved_rope: bool = False
    unrotated: tuple[bool, ...] = ()
    local_rope_theta: float | None = None
    norm_epsilon: float = 1e-6
    centered_norm: bool = False
    mean_norm: bool = False
    pre_norms: bool = True
    post_norms: bool = False
    parallel: bool = False
    query_key_norm: Literal["head", "whole", "rotated"] | None = None
    query_scalar: float | None = None
    normed_rotations: bool = False
    query_growth: float = 0.0
    query_growth_step: int = 0
    attention_bias: bool = True
    output_bias: bool = False
    feed_forward_bias: bool = False
    attention_gate: bool = False
    attention_sinks: bool = False
    attention_softcap: float | None = None
    logits_softcap: float | None = None
    window: int | None = None
    sliding: tuple[bool, ...] = ()
    chunked: bool = False
    full: KeyHeads | None = None
    sharing: SharedKeys | None = None
    normed_values: bool = False
    mixers: tuple[Mixer, ...] = ()
    feed_forwards: tuple[FeedForward, ...] = ()
    activation: Literal["silu", "gelu_tanh", "relu2", "clamped_swish", "xielu"] = "silu"
    ungated: bool = False
    tied_embedding: bool = True
    scaled_embedding: bool = False
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_multiplier: float = 1.0
    per_layer_width: int = 0
    scaled_layers: bool = False
    experts: int = 0
    chosen_experts: int = 0
    expert_bias: bool = False
    normalized_experts: bool = False
    router: Router = PLAIN
    expert_width: int | None = None
    expert_input: int | None = None
    shared_width: int = 0
    weighted_shared: bool = False
    mamba: MambaConfig | None = None
    convolution: ConvolutionConfig | None = None
    latent: LatentConfig | None = None
    delta: DeltaConfig | None = None
    labels: int = 0

    def __post_init__(self) -> None:
        if self.sliding and (len(self.sliding) != self.layers or not self.window):
            raise ValueError(
                f"sliding has {len(self.sliding)} entries and window is {self.window}: give one "
                f"entry for each of the {self.layers} layers, and a window above 0."
            )
        for name in ("unrotated", "mixers", "feed_forwards"):
            if (entries := getattr(self, name)) and len(entries) != self.layers:
                raise ValueError(
                    f"{name} has {len(entries)} entries: give one for each of the {self.layers} "
                    "layers."
                )
        if self.chosen_experts > self.experts:
            raise ValueError(
                f"chosen_experts={self.chosen_experts} is more than experts={self.experts}."
            )
        if self.experts:
            if self.expert_bias and (self.ungated or self.router.of_inputs):
                raise ValueError("Experts with biases have a gate, and weights of their results.")
            self.router.check(self.experts, self.chosen_experts)

    @property
    def dimensions(self) -> dict[str, int]:
        """The sizes that a mesh may divide, by the names of `partition.RULES`."""
        sizes = {
            "width": math.gcd(self.width, self.expert_input or 0),
            "vocabulary": self.vocabulary,
            "heads": self.heads,
            "num_kv_heads": math.gcd(self.num_kv_heads, self.full.num_kv_heads if self.full else 0),
        }
        mamba = self.mamba if "mamba" in self.mixers else None
        if self.per_layer_width:
            sizes["per_layer"] = self.layers * self.per_layer_width
        heads = math.gcd(
            math.gcd(mamba.heads, mamba.groups * mamba.state) if mamba else 0,
            self.width if self.convolution else 0,
            self.delta.key_heads if self.delta else 0,
        )
        if heads:
            sizes["state_heads"] = heads
        if self.latent is not None:
            sizes["rank"] = self.latent.rank
            if self.latent.query_rank is not None:
                sizes["query_rank"] = self.latent.query_rank
        if self.experts:
            sizes["experts"] = self.experts
        gated = any(kind.feed_forward in ("gated", "both") for kind in self.kinds)
        if width := math.gcd(self.feed_forward_width if gated else 0, self.shared_width):
            sizes["feed_forward"] = width
        return sizes

    @property
    def expert_layers(self) -> tuple[int, ...]:
        """The numbers of the layers with experts."""
        with_experts = ("experts", "both")
        return tuple(i for i, kind in enumerate(self.kinds) if kind.feed_forward in with_experts)

    @property
    def record(self) -> tuple[int, str]:
        """The number and the dtype of the experts of a token in all layers (`ChosenExperts`)."""
        columns = len(self.expert_layers) * self.chosen_experts
        return columns, "uint8" if self.experts < 255 else "uint16"

    @property
    def kinds(self) -> tuple[LayerKind, ...]:
        """The kind of each of L layers."""
        none, L = (False,) * self.layers, self.layers
        usual: FeedForward = "experts" if self.experts else "gated"
        mixers: tuple[Mixer, ...] = self.mixers or ("attention",) * L
        feed_forwards: tuple[FeedForward, ...] = self.feed_forwards or (usual,) * L
        slides, shared = self.sliding or none, self.sharing.layers if self.sharing else 0
        full = tuple(self.full is not None and not x for x in slides)
        shares = (False,) * (L - shared) + (True,) * shared
        turns = self.unrotated or none
        each = zip(slides, turns, mixers, feed_forwards, full, shares, strict=True)
        return tuple(LayerKind(*kind) for kind in each)

    @property
    def cached_heads(self) -> int:
        """The heads that devices may divide a cache among: all query heads share a latent."""
        return 1 if "latent" in self.mixers else self.dimensions["num_kv_heads"]

    def key_heads(self, kind: LayerKind) -> KeyHeads:
        """Returns the shape of the heads of a layer."""
        if kind.full and self.full is not None:
            return self.full
        return KeyHeads(head_width=self.head_width, num_kv_heads=self.num_kv_heads)

    @property
    def has_state(self) -> bool:
        """Whether a layer's memory is a state of all tokens before, and not a list of tokens."""
        return not WITH_STATE.isdisjoint(self.mixers)


Options = TypeVar("Options")


def options(of_mixer: Options | None) -> Options:
    """Returns the options of a mixer that a decoder has, such as `options(config.latent)`."""
    if of_mixer is None:
        raise ValueError("A decoder needs the options of each of its mixers.")
    return of_mixer
