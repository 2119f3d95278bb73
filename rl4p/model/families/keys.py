"""Strict readers and writers of the config.json keys that most families share."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from rl4p.base.errors import InputError
from rl4p.model.decoder import DecoderConfig
from rl4p.model.rope import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    ProportionalScaling,
    Scaling,
    YarnScaling,
)

Kind = TypeVar("Kind")
ANY_ROPE_KEYS = (
    *("rope_type", "type", "rope_theta", "partial_rotary_factor"),
    *("mrope_section", "mrope_interleaved"),  # without images all sections have the same positions
)

ROPE_KEYS = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": (
        *("factor", "low_freq_factor", "high_freq_factor"),
        "original_max_position_embeddings",
    ),
    "yarn": (
        *("factor", "original_max_position_embeddings", "attention_factor", "beta_fast"),
        *("beta_slow", "mscale", "mscale_all_dim", "truncate"),
    ),
    "longrope": (
        *("short_factor", "long_factor", "factor", "attention_factor"),
        "original_max_position_embeddings",
    ),
}


class Config(dict[str, Any]):
    """The content of config.json, which remembers in `read` the keys that were looked up."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        super().__init__(content)
        self.read: set[object] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.read.add(key)
        return super().__contains__(key)


@dataclass(frozen=True)
class Keys:
    """A reader of config.json that raises InputError for a missing key or a wrong type."""

    config: dict[str, Any]
    where: str  # the path of the file, for messages

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        """Returns a value of type `kind`, or the default if it is null or absent.

        An integer is accepted as a float.
        """
        value = self.config.get(key)
        value = default if value is None else value
        if value is None:
            raise InputError(f"{self.where} has no {key!r}.")
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise InputError(f"{self.where}: {key} must be {kind.__name__}, not {value!r}.")
        return value

    def size(self, key: str, default: int | None = None) -> int:
        """Returns a whole number above 0 that fits in 32 bits; see `get`."""
        value = self.get(key, int, default)
        if not 0 < value < 2**31:
            raise InputError(f"{self.where}: {key} must be from 1 to 2,147,483,647, not {value}.")
        return value

    def refuse(self, what: str) -> InputError:
        return InputError(f"{self.where} requires {what}, which is not supported.")

    def must_be(self, key: str, only: Any, what: str | None = None) -> None:
        """Raises InputError unless the key is absent, null, or the one supported value."""
        value = self.config.get(key)
        if value is not None and value != only:
            raise self.refuse(f"{what or key} {value!r}")

    def unused(self, *keys: str) -> None:
        """Takes keys as read that transformers writes and does not use for the family."""
        for key in keys:
            self.config.get(key)

    def rope(
        self,
        theta: float = 10_000.0,
        *,
        head_width: int | None = None,
        rotated: float = 1.0,
        long: bool = False,
    ) -> dict[str, Any]:
        """Returns the decoder's rope options.

        transformers 5 writes rope_parameters, earlier versions rope_theta and rope_scaling. A file
        may have both if they say the same.

        Args:
          head_width: the head width of a family that may rotate a part of each head; None if the
            family rotates whole heads.
          rotated: that family's default part.
          long: whether the family may have the type longrope.
        """
        if head_width is None:
            self.must_be("partial_rotary_factor", 1.0)

        def reading(section: dict[str, Any]) -> dict[str, Any]:
            options = {
                "rope_theta": self.theta(section, "rope_theta", theta),
                "rope_scaling": self.scaling(section, partial=head_width is not None, long=long),
            }
            if head_width is not None:  # the part is in the section, or else outside it
                key = "partial_rotary_factor"
                outside = self.get(key, float, rotated)
                within = Keys(section, f"{self.where}, in rope_parameters,")
                part = within.get(key, float, outside)
                if part != outside and self.config.get(key) is not None:
                    raise self.two_ropes(f"{key} and the one of its rope section")
                width = int(head_width * part)
                if width % 2 or not 0 < width <= head_width:
                    what = f"{key} {part}, which rotates {width} of {head_width} elements"
                    raise self.refuse(what)
                options["rotary_width"] = width
            return options

        sections = [self.get(key, dict, {}) for key in ("rope_scaling", "rope_parameters")]
        readings = [*map(reading, filter(None, sections))] or [reading({})]
        if readings[0] != readings[-1]:
            raise self.two_ropes("rope_scaling and rope_parameters")
        return readings[0]

    def theta(self, section: dict[str, Any], key: str, default: float) -> float:
        """Returns the rotary base of a rope section, or else the one under `key`."""
        within = Keys(section, f"{self.where}, in rope_parameters,")
        outside = self.get(key, float, within.get("rope_theta", float, default))
        theta = within.get("rope_theta", float, outside)
        if theta != outside:
            raise self.two_ropes(f"{key} and the rope_theta of its rope section")
        return theta

    def two_ropes(self, what: str) -> InputError:
        return InputError(
            f"{self.where}: {what} differ, and versions of transformers take one or the other: "
            "leave the wrong one out."
        )

    def scaling(
        self, rope: dict[str, Any], *, partial: bool = False, long: bool = False
    ) -> Scaling | None:
        """Returns the scaling of positions in a rope section; None if there is none.

        `partial` and `long` say whether the family may rotate a part of each head, and may have the
        type longrope.
        """
        keys = Keys(rope, f"{self.where}, in rope_parameters,")
        if not partial:
            keys.must_be("partial_rotary_factor", 1.0)
        kind = rope.get("rope_type", rope.get("type", "default"))
        keys.must_be("type", kind)
        if not isinstance(kind, str) or kind not in ROPE_KEYS or (kind == "longrope" and not long):
            raise self.refuse(f"rope type {kind!r}")
        for key, value in rope.items():
            if value is not None and key not in (*ANY_ROPE_KEYS, *ROPE_KEYS[kind]):
                raise self.refuse(f"{key} {value!r} with rope type {kind!r}")
        if kind == "default":
            return None
        factor = keys.get("factor", float, 0.0 if kind == "longrope" else None)
        if kind in ("linear", "dynamic"):
            return (LinearScaling if kind == "linear" else DynamicScaling)(factor=factor)
        longest = self.config.get("max_position_embeddings")
        outside = self.config.get("original_max_position_embeddings", longest)
        original = keys.get("original_max_position_embeddings", int, outside)
        if outside not in (longest, original):
            raise self.two_ropes("original_max_position_embeddings and the one of its rope section")
        if kind == "yarn":
            return keys.yarn(factor, original)
        if kind == "longrope":
            longest = self.size("max_position_embeddings")
            magnitude = long_magnitude(factor or longest / original, original)
            return LongScaling(
                factors=keys.numbers("short_factor"),
                long_factors=keys.numbers("long_factor"),
                original_max_positions=original,
                max_positions=longest,
                magnitude=keys.get("attention_factor", float, magnitude),
            )
        return Llama3Scaling(
            factor=factor,
            low_frequency_factor=keys.get("low_freq_factor", float),
            high_frequency_factor=keys.get("high_freq_factor", float),
            original_max_positions=original,
        )

    def yarn(self, factor: float, original: int) -> YarnScaling:
        """Returns the scaling of a rope section of type yarn."""
        mscale, all_dim = self.get("mscale", float, 0.0), self.get("mscale_all_dim", float, 0.0)
        magnitude = 1 + 0.1 * math.log(max(factor, 1.0))
        if mscale and all_dim:
            log = 0.1 * math.log(max(factor, 1.0))
            magnitude = (1 + mscale * log) / (1 + all_dim * log)
        return YarnScaling(
            factor=factor,
            original_max_positions=original,
            fast_turns=self.get("beta_fast", float, 32.0),
            slow_turns=self.get("beta_slow", float, 1.0),
            truncated=self.get("truncate", bool, True),
            magnitude=self.get("attention_factor", float, magnitude),
        )

    def numbers(self, key: str) -> tuple[float, ...]:
        """Returns a list of numbers."""
        values = self.get(key, list)
        if not values or not all(type(value) in (int, float) for value in values):
            raise InputError(f"{self.where}: {key} must be a list of numbers, not {values!r}.")
        return tuple(map(float, values))

    def biases(self, default: bool = False) -> dict[str, Any]:
        """Returns the options of a family with biases in all projections of attention or none."""
        return dict.fromkeys(
            ("attention_bias", "output_bias"), self.get("attention_bias", bool, default)
        )

    def window(self, default: int) -> int:
        """Returns the window of a family whose layers need one."""
        if self.config.get("sliding_window", default) is None:
            raise self.refuse("sliding_window null")
        return self.size("sliding_window", default)

    def no_window(self) -> None:
        """Raises InputError if a layer is not of full attention, in a model that has no window."""
        for layer_type in self.get("layer_types", list, []):
            if layer_type != "full_attention":
                raise self.refuse(f"layer type {layer_type!r} without a sliding window")

    def sliding(self, window: int | None, default: list[bool]) -> dict[str, Any]:
        """Returns the decoder's window and sliding layers, by layer_types or else the default."""
        if window is None:
            self.no_window()
            return {}
        layers, types = self.get("num_hidden_layers", int), self.get("layer_types", list, [])
        slides = {"sliding_attention": True, "full_attention": False}
        for layer_type in types:
            if layer_type not in [*slides]:  # an entry may be a list, which has no hash
                raise self.refuse(f"layer type {layer_type!r}")
        sliding = tuple(slides[layer_type] for layer_type in types) or tuple(default)
        if len(sliding) != layers:
            raise InputError(
                f"{self.where}: layer_types has {len(sliding)} entries, but num_hidden_layers is "
                f"{layers}."
            )
        return {"window": window, "sliding": sliding} if any(sliding) else {}

    def by_type(self, types: list[Any], table: Mapping[str, Kind], layers: int) -> tuple[Kind, ...]:
        """Returns what a table has for the type of each layer, such as its mixer."""
        for layer_type in types:
            if layer_type not in [*table]:  # an entry may be a list, which has no hash
                raise self.refuse(f"layer type {layer_type!r}")
        if len(types) != layers:
            raise self.refuse(f"{len(types)} layer types with num_hidden_layers {layers}")
        return tuple(table[layer_type] for layer_type in types)

    def shape(
        self,
        head_width: int | None = None,
        feed_forward: str = "intermediate_size",
        *,
        epsilon: str = "rms_norm_eps",
        layers: int | None = None,
    ) -> dict[str, Any]:
        """Returns the decoder options that every family has, without the rope options.

        Args:
          head_width: the family's default for an absent head_dim; None is width // heads.
          feed_forward, epsilon: the keys of these numbers.
          layers: the number of layers; None if num_hidden_layers has it.
        """
        heads, width = self.size("num_attention_heads"), self.size("hidden_size")
        num_kv_heads = self.size("num_key_value_heads", heads)
        if heads % num_kv_heads:
            raise InputError(
                f"{self.where}: num_attention_heads {heads} is not a multiple of "
                f"num_key_value_heads {num_kv_heads}."
            )
        return {
            "vocabulary": self.size("vocab_size"),
            "width": width,
            "layers": layers or self.size("num_hidden_layers"),
            "heads": heads,
            "num_kv_heads": num_kv_heads,
            "head_width": self.size("head_dim", head_width or width // heads),
            "feed_forward_width": self.size(feed_forward),
            "max_positions": self.size("max_position_embeddings"),
            "norm_epsilon": self.get(epsilon, float),
        }


def write_shape(c: DecoderConfig) -> dict[str, Any]:
    """Returns the keys that every family has."""
    rotary: dict[str, float] = {}
    if c.rotary_width is not None:
        factor = c.rotary_width / c.head_width
        if int(c.head_width * factor) < c.rotary_width:  # a reader rounds down
            factor = math.nextafter(factor, 1)
        rotary = {"partial_rotary_factor": factor}
    return {
        "vocab_size": c.vocabulary,
        "hidden_size": c.width,
        "intermediate_size": c.feed_forward_width,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.num_kv_heads,
        "head_dim": c.head_width,
        "max_position_embeddings": c.max_positions,
        "rope_theta": c.rope_theta,
        **({"rope_scaling": write_scaling(c.rope_scaling)} if c.rope_scaling else {}),
        **rotary,
        "rms_norm_eps": c.norm_epsilon,
        "tie_word_embeddings": c.tied_embedding,
    }


def write_scaling(scaling: Scaling | None) -> dict[str, Any]:
    """Returns a rope section, without the base."""
    match scaling:
        case None:
            return {}
        case LinearScaling():
            return {"rope_type": "linear", "factor": scaling.factor}
        case DynamicScaling():
            return {"rope_type": "dynamic", "factor": scaling.factor}
        case Llama3Scaling():
            return {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.low_frequency_factor,
                "high_freq_factor": scaling.high_frequency_factor,
                "original_max_position_embeddings": scaling.original_max_positions,
            }
        case ProportionalScaling():
            return {
                "rope_type": "proportional",
                "partial_rotary_factor": scaling.part,
                "factor": scaling.factor,
            }
        case YarnScaling():
            return {
                "rope_type": "yarn",
                "factor": scaling.factor,
                "attention_factor": scaling.magnitude,
                "beta_fast": scaling.fast_turns,
                "beta_slow": scaling.slow_turns,
                "truncate": scaling.truncated,
                "original_max_position_embeddings": scaling.original_max_positions,
            }
        case LongScaling():
            original = scaling.original_max_positions
            usual = long_magnitude(scaling.max_positions / original, original)
            own = {} if scaling.magnitude == usual else {"attention_factor": scaling.magnitude}
            return {  # transformers 4 takes no other key than these three
                "type": "longrope",
                "short_factor": list(scaling.factors),
                "long_factor": list(scaling.long_factors),
            } | own


def long_magnitude(factor: float, original: int) -> float:
    """Returns the magnitude of LongRoPE for a number of times the original positions."""
    return math.sqrt(1 + math.log(max(factor, 1.0)) / math.log(original))


def limit_positions(keys: Keys, scaling: Scaling | None, rotary_width: int) -> dict[str, int]:
    """Checks LongRoPE's factors; returns the most positions, those without its long factors."""
    if not isinstance(scaling, LongScaling):
        return {}
    if {len(scaling.factors), len(scaling.long_factors)} != {rotary_width // 2}:
        raise InputError(
            f"{keys.where}: short_factor and long_factor must have {rotary_width // 2} numbers, "
            "one for each pair of elements that is rotated."
        )
    return {"max_positions": min(scaling.max_positions, scaling.original_max_positions)}


def write_positions(c: DecoderConfig) -> dict[str, int]:
    """Returns the numbers of positions with LongRoPE, which `limit_positions` reads."""
    if not isinstance(c.rope_scaling, LongScaling):
        return {}
    return {
        "max_position_embeddings": c.rope_scaling.max_positions,
        "original_max_position_embeddings": c.rope_scaling.original_max_positions,
    }


def write_layer_types(c: DecoderConfig) -> list[str]:
    sliding = c.sliding or (False,) * c.layers
    return ["sliding_attention" if slides else "full_attention" for slides in sliding]


KIND = "ForSequenceClassification"


def read_labels(config: dict[str, Any], where: str) -> int:
    """Returns the number of scores; 0 if the architecture is not a classifier.

    transformers writes a name for each score in id2label, but writes nothing for two scores.
    """
    keys = Keys(config, where)
    names = keys.get("architectures", list, [])
    if not any(isinstance(name, str) and name.endswith(KIND) for name in names):
        return 0
    return len(keys.get("id2label", dict, {})) or keys.get("num_labels", int, 2)


def write_labels(labels: int) -> dict[str, Any]:
    if not labels:
        return {}
    names = [f"LABEL_{i}" for i in range(labels)]
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }
