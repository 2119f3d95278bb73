"""A decoder-only transformer of Flax layers, with explicit parameters stacked over layers.

The parameters of all layers are stacked along a leading axis (`pattern.py`). Training scans over
that axis or unrolls it. Decoding slices it once, before its loop, and always unrolls, because a
scan would rewrite the full cache at every decode step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp

from rl4p.base.errors import InputError
from rl4p.base.types import Array, Params
from rl4p.distributed import collectives
from rl4p.distributed.mesh import Mesh
from rl4p.distributed.partition import GATHERED, gather, gathered_axes
from rl4p.model.attention import AttentionInputs, Kernel, softcapped, traced_view, views
from rl4p.model.cache import Cache, ChosenExperts, KVCacheDtype, Prefix, Writer, write
from rl4p.model.decoder_config import DecoderConfig, LayerKind
from rl4p.model.layer import Layer, RMSNorm
from rl4p.model.lora import LoRA
from rl4p.model.pattern import (
    Period,
    fresh_layer,
    own_tree,
    periods,
    places,
    stack,
    unstack,
)
from rl4p.model.per_layer_inputs import fresh_inputs, per_layer_inputs
from rl4p.model.products import PRODUCT, scaled
from rl4p.model.prompt_cache import PromptCache, with_prompts
from rl4p.model.router import RouterLoad
from rl4p.model.vocabulary import Head, head_product, rows_of_table

__all__ = ["Cache", "Decoder", "DecoderConfig", "Prefix", "Remat"]
Remat = Literal["none", "elementwise", "layer"]

PRODUCTS = jax.checkpoint_policies.save_from_both_policies(
    jax.checkpoint_policies.dots_saveable, jax.checkpoint_policies.save_only_these_names(PRODUCT)
)


def all_but_parameters(primitive: Any, *_: Any, **options: Any) -> bool:
    """Keeps what a layer computes. Its parameters are sliced and gathered again.

    The policy of JAX that excludes names keeps all: it looks at no name.
    """
    if primitive.name == "custom_vjp_call":
        return "all_gather" not in str(options["call_jaxpr"])
    return primitive.name not in ("slice", "squeeze") and options.get("name") != GATHERED


def is_kept(primitive: Any, *inputs: Any, **params: Any) -> bool:
    """Returns whether `remat=elementwise` keeps a result: a product, if its operands are no less.

    They are less than the scores of attention: [B, K, M, S] of [B, K, M, h] and [B, K, h, S].
    """
    if primitive is jax.lax.dot_general_p:
        result = primitive.abstract_eval(*inputs, **params)[0]
        return result.size <= sum(x.size for x in inputs)
    return bool(PRODUCTS(primitive, *inputs, **params))


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """The functions of a decoder, without its parameters.

    Attributes:
      config: the shape and the options of the model.
      dtype: the dtype of activations, "float32" or "bfloat16"; logits are always float32.
      remat: which activations the backward pass recomputes: `none`, `elementwise` (all but matrix
        products, and the scores of attention) or `layer`.
      unroll: unrolls the layers in training instead of scanning over them. On a CPU this runs
        faster, since a scan slices and stacks, but compiles longer. It requires `remat=none`:
        without a loop, a CPU's compiler keeps the activations that it should recompute.
      experts: the dispatch of tokens to experts (`experts.Experts`), if the model has experts.
      attention: the attention kernel for full sequences (`kernels.py`).
      lora: the options of adapters, if the parameters contain any.
      exact: whether the order of sums depends on no other row (`exact_sums.py`), so that a sampler
        has the log-probabilities of the trainer in every digit.
      platform: what the decoder is compiled for: cpu, gpu or tpu.
      records: whether caches have the experts of their tokens (`cache.ChosenExperts`).
      kv_cache_dtype: the dtype of keys and values in caches (`Policy.with_kv_cache`).

    Raises:
      InputError: `unroll` is set and `remat` is not `none`.
    """

    config: DecoderConfig
    dtype: str = "float32"
    remat: Remat = "elementwise"
    unroll: bool = False
    experts: Literal["dense", "grouped"] = "dense"
    attention: Kernel = "xla"
    lora: LoRA = field(default_factory=LoRA)
    exact: bool = False
    platform: str = "cpu"
    records: bool = False
    kv_cache_dtype: KVCacheDtype = "auto"

    def __post_init__(self) -> None:
        if self.unroll and self.remat != "none":
            raise InputError(
                f"model.unroll=true keeps the activations that model.remat={self.remat} would "
                "recompute: set model.remat=none, or leave model.unroll out."
            )

    def layer(self, kind: LayerKind) -> Layer:
        narrow_on_cpu = self.platform == "cpu" and self.dtype == "bfloat16"
        return Layer(
            self.config,
            jnp.dtype(self.dtype),
            self.experts,
            self.attention,
            self.lora.scale,
            # Products of bfloat16 reach the matrix units of a CPU (AMX) only with float32 sums.
            sums="float32" if narrow_on_cpu else None,
            exact=self.exact,
            kind=kind.structure,
            parent=None,
        )

    def init(self, key: Array) -> Params:
        """Returns float32 parameters: normal(0, 0.02), residual outputs scaled by 1/sqrt(2 L)."""
        c = self.config
        key_embed, key_head, key_layers = jax.random.split(key, 3)
        init_scale = jnp.zeros if c.centered_norm else jnp.ones
        params = {
            "embedding": 0.02 * jax.random.normal(key_embed, (c.vocabulary, c.width)),
            "layers": self.init_layers(jax.random.split(key_layers, c.layers)),
            "norm": {"scale": init_scale((c.width,))},
        }
        if c.per_layer_width:
            params["per_layer"] = fresh_inputs(c, jax.random.fold_in(key_embed, 1))
        if c.labels:
            params["score"] = 0.02 * jax.random.normal(key_head, (c.labels, c.width))
        elif not c.tied_embedding:
            params["head"] = 0.02 * jax.random.normal(key_head, (c.vocabulary, c.width))
        return params

    def init_layers(self, keys_L: Array) -> Params:
        """Returns the stacked parameters of all layers."""
        c = self.config
        structures = [kind.structure for kind in c.kinds]

        def smaller(path: tuple[Any, ...], x: Array) -> Array:
            names = [key.key for key in path[-2:]]
            output = names in (["output", "kernel"], ["down", "kernel"], ["experts", "down"])
            return x * (2 * c.layers) ** -0.5 if output else x

        made: dict[LayerKind, tuple[list[int], Params]] = {}
        for structure in dict.fromkeys(structures):
            layer = replace(self, attention="xla").layer(structure)  # kernels need their devices
            own = [i for i, kind in enumerate(structures) if kind == structure]
            random_keys: Any = keys_L if len(own) == c.layers else keys_L[jnp.asarray(own)]
            fresh = jax.vmap(partial(fresh_layer, layer))(random_keys)
            made[structure] = own, jax.tree.map_with_path(smaller, fresh)
        if len(made) == 1:
            return made[structures[0]][1]
        rows: dict[str, list[Params]] = {}
        for i, structure in enumerate(structures):
            own, fresh = made[structure]
            row = own.index(i)
            one = jax.tree.map(lambda x, row=row: x[row], fresh)
            for name, x in one.items():
                rows.setdefault(name, []).append(x)
        return {name: jax.tree.map(lambda *x: jnp.stack(x), *x) for name, x in rows.items()}

    def embed(self, params: Params, tokens_BT: Array) -> Array:
        # Indexing would silently clamp a token id outside the vocabulary. The ids are checked when
        # the tokenizer is loaded.
        x_BTD = rows_of_table(params["embedding"], tokens_BT).astype(self.dtype)
        if self.config.scaled_embedding:  # Gemma was trained with the factor rounded to the dtype
            x_BTD = x_BTD * jnp.asarray(self.config.width**0.5, self.dtype)
        return scaled(x_BTD, self.config.embedding_multiplier)

    def inputs(self, params: Params, tokens_BT: Array) -> tuple[Array, Array | None]:
        """Returns the embeddings, and the layers' own inputs [L, B, T, P] if they have any."""
        c, x_BTD = self.config, self.embed(params, tokens_BT)
        if not c.per_layer_width:
            return x_BTD, None
        norm = partial(self.norm, params["per_layer"]["norm"])
        return x_BTD, per_layer_inputs(c, params["per_layer"], tokens_BT, x_BTD, norm)

    def hidden(
        self,
        params: Params,
        tokens_BT: Array,
        positions_BT: Array,
        segment_ids_BT: Array,
        before: Prefix | None = None,
        experts_BTX: Array | None = None,
    ) -> Array:
        """Returns final normed activations [B, T, D] of sequences, which may follow a prefix.

        Where devices divide the columns (`collectives.py`), they are of this device's columns.

        Args:
          experts_BTX: the experts of each token, as in `Trajectories`; None to choose them.
        """
        tokens = tokens_BT, positions_BT, segment_ids_BT, experts_BTX
        return self.final_norm(params, self.run_layers(params, *tokens, before=before)[0])

    def hidden_and_load(
        self,
        params: Params,
        tokens_BT: Array,
        positions_BT: Array,
        segment_ids_BT: Array,
        before: Prefix | None = None,
        experts_BTX: Array | None = None,
    ) -> tuple[Array, RouterLoad]:
        """Returns `hidden`, and what the routers do with these tokens."""
        tokens = tokens_BT, positions_BT, segment_ids_BT, experts_BTX
        x_BTD, _, loads = self.run_layers(params, *tokens, before=before, load=True)
        return self.final_norm(params, x_BTD), jax.tree.map(lambda *x: jnp.concatenate(x), *loads)

    def caches(
        self,
        params: Params,
        tokens_BT: Array,
        positions_BT: Array,
        segment_ids_BT: Array,
        experts_BTX: Array | None = None,
    ) -> Any:
        """Returns the caches of all layers, as in `Prefix`: of B rows with T slots."""
        tokens = tokens_BT, positions_BT, segment_ids_BT, experts_BTX
        return self.run_layers(params, *tokens, keep=True)[1]

    def run_layers(
        self,
        params: Params,
        tokens_BT: Array,
        positions_BT: Array,
        segment_ids_BT: Array,
        experts_BTX: Array | None = None,
        *,
        before: Prefix | None = None,
        keep: bool = False,
        load: bool = False,
    ) -> tuple[Array, Any, Sequence[RouterLoad]]:
        """Returns activations [B, T, D], and what `keep` and `load` ask for.

        Args:
          keep: whether to return the caches of all layers (`caches`).
          load: whether to return the load of the routers, by period and place in it.
        """
        c, keys = self.config, (positions_BT, segment_ids_BT)
        if before is not None:
            keys = tuple(
                jnp.concatenate(pair, axis=1)
                for pair in zip((before.positions_BS, before.segment_ids_BS), keys, strict=True)
            )
        seen = views(c, positions_BT, segment_ids_BT, *keys)
        at = places(c)
        x_BTD, own_LBTP = self.inputs(params, collectives.own(tokens_BT))
        experts_LBTC = None if experts_BTX is None else self.by_layer(collectives.own(experts_BTX))
        shared: dict[bool, Any] = {}  # the last keys and values, of full layers and of others
        caches, loads = [], []
        for number, period in enumerate(periods([kind.structure for kind in c.kinds])):
            stacked = stack(params["layers"], at, period)
            cached = None if before is None else before.layers[number]
            own = jax.tree.map(period.part, (own_LBTP, experts_LBTC))
            (x_BTD, last), (kept, loads_of) = self.run_period(
                x_BTD, period, stacked, cached, seen, shared, own, keep=keep, load=load
            )
            caches.append(kept)
            loads += [one for one in loads_of if one is not None]
            shared |= last
        return x_BTD, tuple(caches), loads

    def by_layer(self, experts_BTX: Array) -> Array:
        """Returns the experts of each layer, [L, B, T, C], or those of another if it has none."""
        with_experts = self.config.expert_layers
        own_L = [
            with_experts.index(i) if i in with_experts else 0 for i in range(self.config.layers)
        ]
        experts = experts_BTX.reshape(*experts_BTX.shape[:2], len(with_experts), -1)
        return jnp.moveaxis(experts, 2, 0)[jnp.asarray(own_L)]

    def run_period(
        self,
        x_BTD: Array,
        period: Period,
        stacked: Params,
        cached: Any,
        seen: dict[LayerKind, AttentionInputs],
        shared: dict[bool, Any],
        own: tuple[Array | None, Array | None],
        *,
        keep: bool,
        load: bool,
    ) -> tuple[tuple[Array, dict[bool, Any]], Any]:
        """Runs all layers of a period; returns the activations, and caches and loads by place.

        Beside the activations are the last keys and values that other layers may share.

        Args:
          own: the layers' own inputs and their experts, of all repetitions; or None.
        """
        saved = {"none": all_but_parameters, "elementwise": is_kept, "layer": None}[self.remat]

        # The kinds at a place of the period. Those with one structure are chosen while it runs.
        kinds = [
            [self.config.kinds[layer] for layer in period.layers(place)]
            for place in range(period.length)
        ]
        views_of = [{kind: seen[kind] for kind in seen if kind in those} for those in kinds]
        numbers = [
            jnp.asarray([*map([*own].index, those)]) if len(own) > 1 else None
            for own, those in zip(views_of, kinds, strict=True)
        ]

        sharing = self.config.sharing is not None

        def run(carry: tuple[Array, Any], scanned: tuple[Params, Any, Any, Any]) -> Any:
            (x_BTD, last), (stacked, numbers, cached, own) = carry, scanned
            kept, loads = [], []
            for place, (kind, *_) in enumerate(kinds):
                keeps = keep or (sharing and not kind.shares)
                run_layer = partial(
                    self.run_layer, (period, place), views_of[place], keep=keeps, load=load
                )
                if self.remat != "none" or gathered_axes() or period.length > 1:
                    # A loop keeps the compiler from merging the recomputation with the original.
                    apart = self.unroll or period.repeats == 1
                    run_layer = jax.checkpoint(run_layer, prevent_cse=apart, policy=saved)
                cache = None if cached is None else cached[place]
                of_place = jax.tree.map(lambda x, place=place: x[place], own)
                inputs = stacked, numbers[place], cache, shared.get(kind.full), *of_place
                x_BTD, cache, of_layer = run_layer(x_BTD, inputs)
                if sharing and not kind.shares:
                    last = last | {kind.full: cache}
                kept.append(cache if keep else None)
                loads.append(of_layer)
            return (x_BTD, last), (tuple(kept), tuple(loads))

        scanned, last = (stacked, numbers, cached, own), {}
        if sharing:  # the loop carries the last ones: as results, those of all layers would stay
            first = jax.tree.map(lambda x: x[0], scanned)
            shapes = jax.eval_shape(run, (x_BTD, last), first)[0][1]
            last = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return jax.lax.scan(run, (x_BTD, last), scanned, unroll=self.unroll)

    def run_layer(
        self,
        where: tuple[Period, int],
        seen: dict[LayerKind, AttentionInputs],
        x_BTD: Array,
        scanned: tuple[Params, Any, Any, Any, Any, Any],
        *,
        keep: bool,
        load: bool,
    ) -> tuple[Array, Any, RouterLoad | None]:
        """Runs the layer at a place of a period, with one of the views."""
        period, place = where
        stacked, number, cache, shared, own_BTP, experts_BTC = scanned
        kind = self.config.kinds[period.start + place]
        layer = own_tree(unstack(stacked, places(self.config), period, place), kind)
        layer = gather(layer, self.dtype)
        view = traced_view(seen, number)
        options = {"shared": shared, "own_BTP": own_BTP, "experts_BTC": experts_BTC}
        (x_BTD, cache), routing = self.apply(
            kind, layer, x_BTD, view, cache, **options, report=load
        )
        of_layer = None
        if routing is not None:
            real_BT = collectives.own(view.segment_ids_BT) != 0
            of_layer = RouterLoad.of(real_BT=real_BT, **routing)
        return x_BTD, cache if keep else None, of_layer

    def apply(
        self,
        kind: LayerKind,
        layer: Params,
        *args: Any,
        experts_BTC: Array | None = None,
        report: bool,
        **options: Any,
    ) -> tuple[tuple[Array, Any], dict[str, Array] | None]:
        """Returns the result of `Layer`, and any report of its router: the choice and the shares.

        Args:
          experts_BTC: the experts of each token (`Router.choose`); None to choose them.
          report: whether a router reports.
        """
        variables: dict[str, Any] = {"params": layer}
        if experts_BTC is not None:
            variables["replay"] = {"experts": {"chosen": experts_BTC}}
        mutable = ["routing"] if report else []
        result: Any = self.layer(kind).apply(variables, *args, **options, mutable=mutable)
        return result[0], result[1].get("routing", {}).get("experts")

    def final_norm(self, params: Params, x_BTD: Array) -> Array:
        return self.norm(params["norm"], x_BTD)

    def norm(self, params: Params, x: Array) -> Array:
        c = self.config
        norm: Any = RMSNorm(c.norm_epsilon, c.centered_norm, c.mean_norm, self.exact, parent=None)
        return norm.apply({"params": params}, x)

    def logits(self, params: Params, hidden: Array) -> Array:
        """Returns float32 logits [..., V] of final activations [..., D]."""
        return self.logits_of(self.head(params), hidden)

    def head(self, params: Params) -> Head:
        """Returns the head. Prepare it outside a loop that computes logits in parts."""
        head_VD = params["embedding" if self.config.tied_embedding else "head"]
        return Head(jax.lax.stop_gradient(head_VD.astype(self.dtype)), head_VD.astype(jnp.float32))

    def logits_of(self, head: Head, hidden: Array) -> Array:
        """Returns `logits` by a prepared head."""
        logits = jnp.asarray(head_product(hidden, head.narrow_VD, head.exact_VD, self.exact))
        logits = scaled(logits, self.config.logits_multiplier)
        return softcapped(logits, self.config.logits_softcap)

    def empty_cache(self, rows: int, slots: int) -> Cache:
        """Returns a cache in the dtype of activations, but on a CPU in float32.

        The compiler for CPUs has no write of bfloat16, and would convert the whole cache to float32
        and back for each new token.
        """
        dtype = "float32" if self.platform == "cpu" else self.dtype
        zeros = jnp.zeros((rows, slots), jnp.int32)
        options = rows, slots, dtype, self.kv_cache_dtype == "int8"
        layers = tuple(self.layer(kind).empty_cache(*options) for kind in self.config.kinds)
        if self.records:
            columns, small = self.config.record
            layers += (ChosenExperts(jnp.zeros((rows, slots, columns), small)),)
        return Cache(layers=layers, positions_BS=zeros, segment_ids_BS=zeros)

    def extend(
        self,
        params: Params,
        tokens_BT: Array,
        positions_BT: Array,
        segment_ids_BT: Array,
        cache: Cache,
        slot: Array | int,
        mesh: Mesh | None = None,
        prompts: PromptCache | None = None,
        columns: int | None = None,
    ) -> tuple[Array, Cache]:
        """Runs T more tokens of each row, and writes their keys and values to the cache.

        Args:
          params: parameters with one tree per layer (`partition.for_decoding`).
          slot, mesh: as of `cache.Writer`.
          prompts: the prompts that the rows continue, if the cache lacks their tokens.
          columns: the first columns, behind which no token sees any; None for all.

        Returns:
          Final normed activations [B, T, D] and the new cache.
        """
        put = Writer(slot, mesh)
        positions_BS = put(cache.positions_BS, positions_BT, 1)
        segment_ids_BS = put(cache.segment_ids_BS, segment_ids_BT, 1)
        keys = (x[:, :columns] for x in (positions_BS, segment_ids_BS))
        seen = views(self.config, positions_BT, segment_ids_BT, *keys)
        (x_BTD, own_LBTP), written = self.inputs(params, tokens_BT), []
        before: Any = (None,) * self.config.layers
        if prompts is not None:
            before, shards = prompts.cache.layers, 1 if mesh is None else mesh.row_shards
            queries = positions_BT, segment_ids_BT, self.config
            seen = with_prompts(seen, prompts, *queries, shards)
        shared: dict[bool, Any] = {}  # the caches of the last layer with keys: of rows, of prompts
        chosen = []
        for i, kind in enumerate(self.config.kinds):
            keys, prompt = shared[kind.full] if kind.shares else (None, before[i])
            (x_BTD, layer_cache), routing = self.apply(
                kind,
                own_tree(params["layers"][i], kind),
                x_BTD,
                seen[kind],
                cache.layers[i],
                put,
                keys,
                None if own_LBTP is None else own_LBTP[i],
                prompt,
                report=self.records,
            )
            written.append(layer_cache)
            if routing is not None:
                chosen.append(routing["chosen"] + 1)
            if not kind.shares:
                shared[kind.full] = layer_cache, prompt
        if self.records:
            old_BSX = cache.layers[-1].chosen_BSX
            new_BTX = jnp.concatenate(chosen, axis=-1).astype(old_BSX.dtype)
            written.append(ChosenExperts(write(old_BSX, new_BTX, slot, 1)))
        cache = Cache(
            layers=tuple(written), positions_BS=positions_BS, segment_ids_BS=segment_ids_BS
        )
        return self.final_norm(params, x_BTD), cache
