"""The keys of config.json of families with experts, in groups, read and written.

A `KeyGroup` reads some options of the decoder and writes their keys. The groups of a family are its
differences from Llama (`sparse.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rl4p.model.decoder import DecoderConfig
from rl4p.model.families.keys import Keys, write_layer_types
from rl4p.model.router import Router

Options = dict[str, Any]


@dataclass(frozen=True)
class KeyGroup:
    """A reader and a writer of some options.

    Attributes:
      read: a function from the keys and the options that were read before to further ones.
      write: a function that returns the keys of these options.
    """

    read: Callable[[Keys, Options], Options]
    write: Callable[[DecoderConfig], dict[str, Any]]


def counts(
    count: str, other: str | None, chosen: str = "num_experts_per_tok", *, width: str | None = None
) -> KeyGroup:
    """Returns the keys for the number of experts, that of a token, and their width.

    Args:
      count, other: the key of the number of experts, and the one that transformers also accepts.
      chosen: the key of the number of experts of a token.
      width: the key of the width of an expert; None if it is the width of the feed-forward.
    """

    def read(keys: Keys, options: Options) -> Options:
        number = keys.size(count, keys.config.get(other) if other else None)
        if other is not None:
            keys.must_be(other, number)
        used = keys.size(chosen)
        if used > number:
            raise keys.refuse(f"{chosen} {used}, which is more than {count} {number},")
        own = {} if width is None else {"expert_width": keys.size(width)}
        return {"experts": number, "chosen_experts": used, **own}

    def write(c: DecoderConfig) -> dict[str, Any]:
        own = {} if width is None else {width: c.expert_width}
        return {count: c.experts, chosen: c.chosen_experts, **own}

    return KeyGroup(read, write)


def normalized(default: bool) -> KeyGroup:
    key = "norm_topk_prob"
    return KeyGroup(
        lambda keys, _: {"normalized_experts": keys.get(key, bool, default)},
        lambda c: {key: c.normalized_experts},
    )


def fixed(**options: Any) -> KeyGroup:
    """Returns a group without keys, which sets these options."""
    return KeyGroup(lambda *_: options, lambda _: {})


def only(key: str, value: Any) -> KeyGroup:
    """Returns the group of one key, of which a single value is supported."""

    def read(keys: Keys, _: Options) -> Options:
        keys.must_be(key, value)
        return {}

    return KeyGroup(read, lambda _: {key: value})


def biases(key: str, *names: str, default: bool = False) -> KeyGroup:
    """Returns the key that adds the biases with these names."""
    return KeyGroup(
        lambda keys, _: dict.fromkeys(names, keys.get(key, bool, default)),
        lambda c: {key: getattr(c, names[0])},
    )


def expert_width(c: DecoderConfig) -> int:
    return c.expert_width or c.feed_forward_width


def shared(key: str, *, least: int = 1) -> KeyGroup:
    """Returns the key for the number of shared experts, which are as wide as the others."""

    def read(keys: Keys, options: Options) -> Options:
        width, number = options.get("expert_width"), keys.get(key, int)
        if number < least:
            raise keys.refuse(f"{key} {number}")
        return {"shared_width": number * (width or options["feed_forward_width"])}

    return KeyGroup(read, lambda c: {key: c.shared_width // expert_width(c)})


def shared_width(key: str, *, weighted: bool) -> KeyGroup:
    return KeyGroup(
        lambda keys, _: {"shared_width": keys.size(key), "weighted_shared": weighted},
        lambda c: {key: c.shared_width},
    )


def grouped(**options: Any) -> KeyGroup:
    """Returns the keys for a router whose experts are in groups, and whose weights are scaled."""

    def read(keys: Keys, before: Options) -> Options:
        router = Router(
            groups=keys.size("n_group", 1),
            chosen_groups=keys.size("topk_group", 1),
            factor=keys.get("routed_scaling_factor", float, 1.0),
            **options,
        )
        try:
            router.check(before["experts"], before["chosen_experts"])
        except ValueError as error:
            raise keys.refuse(f"n_group and topk_group: {str(error).removesuffix('.')}") from None
        return {"router": router}

    def write(c: DecoderConfig) -> dict[str, Any]:
        return {
            "n_group": c.router.groups,
            "topk_group": c.router.chosen_groups,
            "routed_scaling_factor": c.router.factor,
        }

    return KeyGroup(read, write)


# The router of DeepSeek-V3.
GROUPED = grouped(score="sigmoid", corrected=True, epsilon=1e-20, exact=True)


def scaled_sigmoid(key: str, default: float) -> KeyGroup:
    """Returns the keys for a corrected sigmoid without groups, normalized and then scaled."""

    def read(keys: Keys, _: Options) -> Options:
        factor = keys.get(key, float, default)
        router = Router(score="sigmoid", corrected=True, factor=factor, epsilon=1e-20, exact=True)
        return {"router": router, "normalized_experts": True}

    return KeyGroup(read, lambda c: {key: c.router.factor})


# Which layers have experts.


def with_experts(keys: Keys, each: list[bool]) -> Options:
    """Returns the option of the layers, given which of them have experts."""
    if not any(each):
        raise keys.refuse("no layer with experts")
    kinds = tuple("experts" if sparse else "gated" for sparse in each)
    return {"feed_forwards": () if all(each) else kinds}


def sparse(c: DecoderConfig) -> list[bool]:
    return [kind.feed_forward == "experts" for kind in c.kinds]


def first_dense(default: int) -> KeyGroup:
    """Returns the keys for the number of first layers without experts."""
    key = "first_k_dense_replace"

    def read(keys: Keys, options: Options) -> Options:
        first = keys.get(key, int, default)
        return with_experts(keys, [layer >= first for layer in range(options["layers"])])

    return KeyGroup(read, lambda c: {key: sparse(c).index(True)})


def after_first_dense(keys: Keys, layers: int) -> list[bool]:
    first = keys.get("first_k_dense_replace", int, 1)
    return [layer >= first for layer in range(layers)]


def all_but_first(_: Keys, layers: int) -> list[bool]:
    return [layer > 0 for layer in range(layers)]


def layer_kinds(default: Callable[[Keys, int], list[bool]]) -> KeyGroup:
    """Returns the group of the key mlp_layer_types; `default` is of a file without it."""
    key, names = "mlp_layer_types", {"sparse": True, "dense": False}

    def read(keys: Keys, options: Options) -> Options:
        layers = options["layers"]
        types = keys.get(key, list, [])
        for name in types:
            if name not in [*names]:
                raise keys.refuse(f"{key} {name!r}")
        if types and len(types) != layers:
            raise keys.refuse(f"{key} with {len(types)} entries for {layers} layers")
        return with_experts(keys, [names[x] for x in types] or default(keys, layers))

    return KeyGroup(read, lambda c: {key: ["sparse" if x else "dense" for x in sparse(c)]})


def steps(*usual: int) -> KeyGroup:
    """Returns Qwen's keys: every n-th layer has experts, but for the ones in a list."""

    def read(keys: Keys, options: Options) -> Options:
        step = keys.size("decoder_sparse_step", 1)
        dense = keys.get("mlp_only_layers", list, [*usual])
        if any(type(layer) is not int for layer in dense):
            raise keys.refuse(f"mlp_only_layers {dense!r}")
        layers = range(options["layers"])
        return with_experts(keys, [(i + 1) % step == 0 and i not in dense for i in layers])

    def write(c: DecoderConfig) -> dict[str, Any]:
        dense = [i for i, has in enumerate(sparse(c)) if not has]
        return {"decoder_sparse_step": 1, "mlp_only_layers": dense}

    return KeyGroup(read, write)


def read_interval(keys: Keys, options: Options) -> Options:
    """Reads Ernie's: every n-th layer of a range has experts."""
    layers, step = options["layers"], keys.size("moe_layer_interval", 1)
    start = keys.get("moe_layer_start_index", int, 1)
    end = keys.get("moe_layer_end_index", int, -1)
    end = layers - 1 if end == -1 else end
    return with_experts(keys, [(i + 1) % step == 0 and start <= i <= end for i in range(layers)])


def write_interval(c: DecoderConfig) -> dict[str, Any]:
    has = [i for i, sparse_ in enumerate(sparse(c)) if sparse_]
    step = has[1] - has[0] if len(has) > 1 else has[0] + 1
    return {
        "moe_layer_interval": step,
        "moe_layer_start_index": has[0],
        "moe_layer_end_index": has[-1],
    }


INTERVAL = KeyGroup(read_interval, write_interval)


# Sliding windows.


def read_no_window(keys: Keys, _: Options) -> Options:
    keys.must_be("sliding_window", None)
    keys.no_window()
    return {}


NO_WINDOW = KeyGroup(read_no_window, lambda _: {})


def read_one_window(keys: Keys, options: Options) -> Options:
    """Reads a window of all layers, or none."""
    keys.must_be("layer_types", None)
    if keys.config.get("sliding_window") is None:
        return {}
    return keys.sliding(keys.size("sliding_window"), [True] * options["layers"])


ONE_WINDOW = KeyGroup(read_one_window, lambda c: {"sliding_window": c.window})


def read_used_window(keys: Keys, options: Options) -> Options:
    """Reads the window of Qwen 2 with experts, where every second layer slides by default."""
    if not keys.get("use_sliding_window", bool, False):
        keys.no_window()
        return {}
    last = keys.get("max_window_layers", int, 28)
    slides = [i % 2 == 0 and i < last for i in range(options["layers"])]
    return keys.sliding(keys.size("sliding_window", 4096), slides)


USED_WINDOW = KeyGroup(
    read_used_window,
    lambda c: {
        "use_sliding_window": c.window is not None,
        "sliding_window": c.window,
        "layer_types": write_layer_types(c),
    },
)


def read_late_window(keys: Keys, options: Options) -> Options:
    """Reads a window of the layers from max_window_layers on, or of those in layer_types."""
    absent = keys.config.get("sliding_window", 4096) is None
    first = keys.get("max_window_layers", int, 62)
    slides = [i >= first for i in range(options["layers"])]
    return keys.sliding(None if absent else keys.size("sliding_window", 4096), slides)


LATE_WINDOW = KeyGroup(
    read_late_window,
    lambda c: {"sliding_window": c.window, "layer_types": write_layer_types(c)},
)


def read_flint_window(keys: Keys, options: Options) -> Options:
    """Reads the window of Flint, where layers of full attention are not rotated."""
    if not keys.get("layer_types", list):
        raise keys.refuse("layer_types that is empty")
    window = keys.sliding(keys.window(513), [])
    full = [not slides for slides in window.get("sliding", (False,) * options["layers"])]
    return {**window, "unrotated": tuple(full) if any(full) else ()}


FLINT_WINDOW = KeyGroup(
    read_flint_window,
    lambda c: {"sliding_window": c.window or 513, "layer_types": write_layer_types(c)},
)


def read_unrotated_window(keys: Keys, options: Options) -> Options:
    """Reads the window of EXAONE, with which the layers of full attention are not rotated."""
    layers = options["layers"]
    if keys.config.get("sliding_window", 4096) is None:
        keys.no_window()
        return {}
    pattern = keys.config.get("sliding_window_pattern", 4)
    if not keys.config.get("layer_types"):
        pattern = keys.size("sliding_window_pattern", 4)  # which may be a text else
    slides = [(i + 1) % pattern != 0 for i in range(layers)] if type(pattern) is int else []
    read = keys.sliding(keys.size("sliding_window", 4096), slides)
    full = [not slides for slides in read.get("sliding", (False,) * layers)]
    return {**read, "unrotated": tuple(full) if any(full) else ()}


UNROTATED_WINDOW = KeyGroup(
    read_unrotated_window,
    lambda c: {
        "sliding_window": c.window or (4096 if c.unrotated else None),
        "sliding_window_pattern": None,
        "layer_types": write_layer_types(c),
    },
)
