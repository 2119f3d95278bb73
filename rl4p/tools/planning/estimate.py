"""An estimate of a step from the shapes of what one device has, without compiling anything."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, Literal
from jax.sharding import NamedSharding

from rl4p.base.types import Params, TrainingBatch
from rl4p.configuration.slices import Chip, least_hops
from rl4p.distributed.partition import specs
from rl4p.learner.device_gradient import adds_in_place
from rl4p.learner.gradient_step import add_minibatch_scores, shares_prompts
from rl4p.learner.logprobs import ForwardRows, columns_per_chunk
from rl4p.learner.microbatches import rows_in
from rl4p.learner.objective import token_loss
from rl4p.model.decoder import Decoder, Prefix
from rl4p.model.decoder_config import DecoderConfig
from rl4p.model.experts import experts_of
from rl4p.model.lora import merge_trees
from rl4p.model.pattern import places
from rl4p.protocols.phases import Distils
from rl4p.protocols.traits import KeepsCaches, RolloutTraits
from rl4p.tools.planning.abstract import AbstractRun, bytes_of_chip
from rl4p.tools.planning.programs import children, product_flops, slots_of
from rl4p.update.reinforce import Reinforce


def bytes_of_cache(run: AbstractRun, tokens: float, dtype: Any = "auto") -> float:
    """Returns the bytes of a row of the cache on a device: of its states and of so many tokens.

    Args:
      dtype: of keys and values, as in `CacheSize`.
    """
    decoder, mesh = run.policy.with_kv_cache(dtype).decoder, run.policy.sampling_mesh
    layers = jax.eval_shape(lambda: decoder.empty_cache(1, 1)).layers
    total = 0.0
    for layer in layers:
        for x, axis in zip(layer, layer.slot_axes, strict=True):
            divided = mesh.devices.shape["tp"] if layer.divided else 1
            total += bytes_in(x) // divided * (1 if axis is None else tokens)
    return total


def bytes_in(tree: Any) -> int:
    """Returns the bytes of whole arrays."""
    return sum(x.size * jnp.dtype(x.dtype).itemsize for x in jax.tree.leaves(tree))


def local(run: AbstractRun, params: Params) -> Params:
    """Returns parameters as a device uses them: divided along `tp`, gathered along `fsdp`.

    A router has the columns of the device's own experts, for `StepEstimate.decoder`.
    """
    devices = run.mesh.devices

    def of(path: tuple, x: Any, spec: Any) -> jax.ShapeDtypeStruct:
        shape = NamedSharding(devices, spec).shard_shape(x.shape)
        if "router" in jax.tree_util.keystr(path):
            shape = *shape[:-1], shape[-1] // devices.shape["tp"]
        return jax.ShapeDtypeStruct(shape, x.dtype)

    return jax.tree.map_with_path(of, params, specs(params, ("tp",)))


def layers_of(params: Params, config: DecoderConfig) -> Params:
    """Returns the shapes of parameters with the layers of a smaller decoder only."""
    if "layers" not in params:
        return params
    counts = Counter(name for own in places(config) for name, _ in own)
    layers = {
        name: jax.tree.map(lambda x, n=counts[name]: x.update(shape=(n, *x.shape[1:])), tree)
        for name, tree in params["layers"].items()
        if name in counts
    }
    return params | {"layers": layers}


def with_one_layer(config: DecoderConfig) -> list[DecoderConfig]:
    """Returns decoders of one layer: the first of each structure."""
    structures = [kind.structure for kind in config.kinds]
    several = ("sliding", "unrotated", "mixers", "feed_forwards")
    return [
        replace(config, layers=1, **{name: getattr(config, name)[i : i + 1] for name in several})
        for i in map(structures.index, dict.fromkeys(structures))
    ]


LOGITS = 3  # arrays of logits at a time

Parts = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What one microbatch of a device keeps and computes."""

    kept: int  # the bytes that the backward pass reads, without parameters but with copies of them
    logits: int  # the bytes of the largest array of logits
    flops: float  # the operations of the forward pass, on this device


@dataclass(frozen=True, kw_only=True)
class MicrobatchLayout:
    """The microbatches of one device."""

    # rows, columns: of one microbatch
    rows: int
    columns: int
    prompt_columns: int  # the columns of prompts that the rows of a group share
    microbatches: int  # their number in a step


@dataclass(frozen=True, kw_only=True)
class StepEstimate:
    """The estimated memory of a device and the least time of a step, by phase."""

    run: AbstractRun  # the run as shapes
    chip: Chip  # the device; a figure of it that is 0 is unknown

    @cached_property
    def memory(self) -> dict[str, Parts]:
        """The bytes of each part by phase: `sampling`, if a policy samples, and `update`."""
        run, update = self.run, self.resident() | self.update()
        if not RolloutTraits.read(run.phases.rollout).samples:
            return {"update": update}
        if run.overlaps:
            update |= {"sampling copy": bytes_of_chip(run.copied_for_sampling())} | self.sampling()
        return {"sampling": self.while_sampling(), "update": update}

    def while_sampling(self) -> Parts:
        """Returns what a device that samples holds."""
        run = self.run
        if run.mesh.rollout_devices:
            return {"sampling copy": bytes_of_chip(run.sampling_params())} | self.sampling()
        copy = bytes_of_chip(run.copied_for_sampling())
        return self.resident() | {"sampling copy": copy} | self.sampling()

    def resident(self) -> Parts:
        """Returns the arrays that stay on a device during the whole run."""
        run, state, base = self.run, self.run.state, self.run.policy.frozen
        parts: Parts = {}
        if base:
            parts["base"] = bytes_of_chip(base)
            parts["adapters"] = bytes_of_chip(state.params)
        else:
            parts["parameters"] = bytes_of_chip(state.params)
        parts["optimizer"] = bytes_of_chip(state.optimizer_state)
        copies = bytes_of_chip((run.frozen, state.average, state.reference)) - bytes_of_chip(base)
        return parts | {"reference and copies": copies}

    def sampling(self) -> Parts:
        """Returns what the sampler adds, caches and logits; nothing if servers sample."""
        run, mesh, rollout = self.run, self.run.policy.sampling_mesh, self.run.phases.rollout
        if not isinstance(rollout, KeepsCaches):
            return {}
        tp, caches = mesh.devices.shape["tp"], rollout.caches(run)
        rows = [-(-each.rows // mesh.row_shards) for each in caches]
        cache = sum(
            row * bytes_of_cache(run, each.columns, each.kv_cache_dtype)
            for row, each in zip(rows, caches, strict=True)
        )
        logits = max(rows, default=0) * run.policy.decoder.config.vocabulary // tp * 4
        return {"cache": cache, "sampled logits": LOGITS * logits}

    def update(self) -> Parts:
        """Returns what a gradient step adds to the arrays that stay."""
        run, decoder, layout = self.run, self.decoder, self.layout
        trained = bytes_of_chip(run.state.params)
        itemsize = jnp.dtype(decoder.dtype).itemsize
        objective = run.phases.objective(run.policy, run.group_size, run.teacher)
        in_place = adds_in_place(objective, run.phases.frozen(run.policy, run.teacher))
        parts: Parts = {
            # The sum over the microbatches, and the gradient of one unless it is added in place.
            "gradients": trained if in_place else 2 * trained,
            "activations": self.traced.kept,
            "layer": max(layer.kept for layer in self.layers),
            "logits": LOGITS * self.traced.logits,
            "batch": bytes_of_chip(run.batch()),
        }
        if layout.prompt_columns:  # the caches of prompts, and their gradients in float32
            of_row = sum(x.size for x in jax.tree.leaves(self.prefix(decoder, rows=1)))
            P = -(-run.prompts // run.mesh.row_shards)
            parts["shared prompts"] = P * of_row * (itemsize + 4)
        # Kernels in 4 bits have two numbers in a byte.
        base = jax.tree.leaves(local(run, run.policy.frozen))
        packed = sum(2 * x.size for x in base if x.dtype == jnp.uint8) / decoder.config.layers
        parts["expanded layer"] = packed * (4 + itemsize)
        # Offloaded moments are copied to the device when only a gradient is left of these parts.
        moments = bytes_of_chip(run.state.optimizer_state, in_host=True)
        parts["offloaded moments"] = max(0, moments + trained - sum(parts.values()))
        # An offloaded reference is copied to the device to score the tokens, before the update.
        reference = run.reference[1] if run.reference is not None else ()
        reference = bytes_of_chip(reference, in_host=True)
        parts["offloaded reference"] = max(0, reference - sum(parts.values()))
        if run.mesh.devices.shape["fsdp"] * run.mesh.column_shards > 1:
            whole = local(run, run.policy.merged(run.state.params))
            parts["gathered parameters"] = max(  # of a layer, and embedding and head
                bytes_in(layers_of(whole, one)) for one in with_one_layer(decoder.config)
            )
        return parts

    @cached_property
    def decoder(self) -> Decoder:
        """The decoder with the heads, feed-forward or experts, and vocabulary of one device."""
        decoder, tp = self.run.policy.decoder, self.run.mesh.devices.shape["tp"]
        c = decoder.config
        mixers = {}
        for name in ("mamba", "delta"):
            if (mixer := getattr(c, name)) is not None:
                counts = {
                    key: size // tp
                    for key, size in vars(mixer).items()
                    if key in ("heads", "groups", "key_heads", "value_heads")
                }
                mixers[name] = replace(mixer, **counts)
        own = replace(
            c,
            **mixers,
            vocabulary=c.vocabulary // tp,
            heads=c.heads // tp,
            num_kv_heads=c.num_kv_heads // tp,
            feed_forward_width=c.feed_forward_width // tp,
            expert_width=c.expert_width or c.feed_forward_width,
            shared_width=c.shared_width // tp,
            experts=c.experts // tp,
            chosen_experts=min(c.chosen_experts, c.experts // tp),
            router=replace(c.router, groups=1, chosen_groups=1),
        )
        return replace(decoder, config=own, attention="xla")

    @cached_property
    def layout(self) -> MicrobatchLayout:
        """The microbatches of one device."""
        run, update, mesh = self.run, self.run.phases.update, self.run.mesh
        objective = run.phases.objective(run.policy, run.group_size, run.teacher)
        shared = shares_prompts(objective, run.trajectories())
        prompt_columns = run.prompt_columns - 1 if shared else 0
        T = run.prompt_columns + run.response_tokens - prompt_columns
        together = run.phases.rows_together(run.group_size)
        of_minibatch = -(-run.sequences // mesh.row_shards // update.minibatches)
        own = -(-T // mesh.column_shards)
        b = rows_in(of_minibatch, own, update.tokens_per_microbatch, together)
        count = -(-of_minibatch // b) * update.minibatches * update.epochs
        return MicrobatchLayout(
            rows=b, columns=T, prompt_columns=prompt_columns, microbatches=count
        )

    @cached_property
    def traced(self) -> Trace:
        """The trace of the loss of a microbatch."""
        run, decoder = self.run, self.decoder
        objective = run.phases.objective(run.policy, run.group_size)
        objective = replace(objective, decoder=decoder)
        if isinstance(objective.update, Distils):  # a loss without the teacher, which is left out
            objective = replace(objective, update=Reinforce())
        coefficients = run.phases.coefficients(run.phases.initial_memory(), 0)

        def loss(params: Params, micro: TrainingBatch, before: Prefix | None) -> Any:
            rows = ForwardRows(micro.trajectories, before)
            loss_BT, *_ = token_loss(objective, params, micro, coefficients, rows)
            weights_BT = jnp.ones(micro.loss_mask_BT.shape, jnp.float32)
            return jnp.sum(jnp.where(micro.loss_mask_BT, weights_BT * loss_BT, 0.0))

        return self.trace(loss, decoder)

    @cached_property
    def layers(self) -> list[Trace]:
        """The trace of one layer of each structure that recomputes nothing."""
        traces = []
        for one in with_one_layer(self.decoder.config):
            decoder = replace(self.decoder, config=one, remat="none", unroll=False)

            def run_layer(
                params: Params,
                micro: TrainingBatch,
                before: Prefix | None,
                decoder: Decoder = decoder,
            ) -> Any:
                x = micro.trajectories
                tokens = x.tokens_BT, x.positions_BT, x.segment_ids_BT
                return decoder.run_layers(params, *tokens, before=before)[0]

            traces.append(self.trace(run_layer, decoder))
        return traces

    def prefix(self, decoder: Decoder, rows: int) -> Any:
        """Returns the caches of the prompts of so many rows; () if nothing is shared."""
        if not self.layout.prompt_columns:
            return ()
        tokens = jax.ShapeDtypeStruct((rows, self.layout.prompt_columns), jnp.int32)
        whole = local(self.run, self.run.policy.merged(self.run.state.params))
        params = layers_of(whole, decoder.config)
        return jax.eval_shape(decoder.caches, params, *(tokens,) * 3)

    def trace(self, function: Callable[..., Any], decoder: Decoder) -> Trace:
        """Traces a function of parameters, a microbatch and its prefixes, with its residuals."""
        run, layout, c = self.run, self.layout, decoder.config
        b, T, S = layout.rows, layout.columns, layout.prompt_columns
        frozen, trained = (
            local(run, layers_of(tree, c)) for tree in (run.policy.frozen, run.state.params)
        )
        objective = run.phases.objective(run.policy, run.group_size)
        batch = jax.eval_shape(partial(add_minibatch_scores, objective), run.batch())
        micro = jax.tree.map(lambda x: jax.ShapeDtypeStruct((b, T)[: x.ndim], x.dtype), batch)
        prefix = self.prefix(decoder, rows=b)

        def backward(trained: Params, prefix: Any, frozen: Params, micro: TrainingBatch) -> Any:
            def of(trained: Params, prefix: Any) -> Any:
                before = Prefix(prefix, jnp.ones((b, S), jnp.int32)) if S else None
                with jax.named_scope(experts_of(run.mesh.devices.shape["tp"])):
                    return function(merge_trees(frozen, trained), micro, before)

            return jax.vjp(of, trained, prefix)[1]

        jaxpr = jax.make_jaxpr(backward)(trained, prefix, frozen, micro).jaxpr
        given, copied = set(map(id, jaxpr.invars)), 0
        for equation in jaxpr.eqns:
            # A period's part of a stack is a copy, of this device's shards, if there are others.
            if equation.primitive.name in ("reshape", "slice") and id(equation.invars[0]) in given:
                given.add(id(equation.outvars[0]))
                if equation.primitive.name == "slice":
                    copied += bytes_in(equation.outvars[0].aval)
        residuals = {id(x): x.aval for x in jaxpr.outvars if not isinstance(x, Literal)}
        stored = self.run.policy.decoder.attention == "xla"  # kernels store no scores
        logits = (bytes_in(x) for x in arrays(jaxpr) if x.shape[-1:] == (c.vocabulary,))
        cp = run.mesh.column_shards  # devices that share the columns, or the heads in attention
        chunk, own = (
            columns_per_chunk(b, n, c.vocabulary, decoder.platform) for n in (T, -(-T // cp))
        )
        return Trace(
            kept=sum(
                bytes_in(x)
                for name, x in residuals.items()
                if name not in given and (stored or not is_scores(x.shape, decoder))
            )
            // cp
            + copied // (run.mesh.devices.shape["fsdp"] * cp),
            logits=max(logits, default=0) * min(own, -(-T // cp)) // min(chunk, T),
            flops=product_flops(jaxpr) / cp,
        )

    @cached_property
    def seconds(self) -> dict[str, dict[str, float]]:
        """The least seconds of a step's phases for products, memory and network of a device."""
        run, chip, decoder, layout = self.run, self.chip, self.decoder, self.layout
        sampling = self.of_sampling(run)
        if not chip.flops:
            return {"sampling": sampling, "update": {}}
        # Each product has two in the backward pass, or one if its parameters are frozen.
        back = 1 if run.policy.frozen else 2
        again = 1 if decoder.remat == "layer" else 0
        T, itemsize = layout.columns, jnp.dtype(decoder.dtype).itemsize
        rows = run.sequences / run.mesh.row_shards * run.phases.update.epochs
        prompts = run.prompts / run.mesh.row_shards * layout.prompt_columns
        flops = rows * T * (1 + again + back) + prompts * (2 + back)
        # Parameters are gathered for each pass, and their gradients reduced.
        whole = bytes_in(local(run, run.policy.merged(run.state.params)))
        trained = bytes_in(local(run, run.state.params))
        dp, cp = run.mesh.devices.shape["dp"], run.mesh.column_shards
        shards = run.mesh.devices.shape["fsdp"] * cp
        passes = layout.microbatches * (2 + again)
        narrow = min(1.0, itemsize / 4) if not run.policy.frozen else 1.0
        sent = passes * whole * narrow * (shards - 1) / shards
        sent += layout.microbatches * trained * (shards - 1) / shards
        sent += 2 * trained / shards * (dp - 1) / dp
        # The exchange of columns for heads: queries, keys, values and results of attention.
        c = decoder.config
        exchanged = 2 * (c.heads + c.num_kv_heads) * c.head_width * c.layers * itemsize
        sent += (2 + again) * rows * T / cp * exchanged * (cp - 1) / cp
        update = {
            "products": flops * self.flops_of_token / chip.flops,
            "memory": passes * whole * narrow / chip.bandwidth,
            "network": sent / chip.network,
        }
        return {"sampling": sampling, "update": update}

    def of_sampling(self, run: AbstractRun) -> dict[str, float]:
        """Returns the least seconds of a rollout, also of other prompts than those of a step."""
        chip, rollout = self.chip, run.phases.rollout
        if not isinstance(rollout, KeepsCaches) or not chip.flops:
            return {}
        mesh, decoder, R = run.policy.sampling_mesh, run.policy.decoder, run.response_tokens
        tokens = run.sequences * R + run.prompts * run.prompt_columns
        caches = rollout.caches(run)
        slots = slots_of(run) or max((cache.rows for cache in caches), default=1)
        steps, tp = R * -(-run.sequences // slots), mesh.devices.shape["tp"]
        # Of the operations that a device of the update has.
        share = run.mesh.devices.shape["tp"] * run.mesh.column_shards / tp
        # On average half of the response columns are written.
        shared = [cache for cache in caches if cache.shared]
        columns = R / 2 + (0 if shared else run.prompt_columns)
        read = run.bytes_per_decode_step(run.sampling_params())
        kind = next((each.kv_cache_dtype for each in caches), "auto")
        of_cache = partial(bytes_of_cache, run, dtype=kind)
        read += slots / mesh.row_shards * of_cache(columns)
        read += sum(each.rows * of_cache(each.columns) for each in shared) / mesh.row_shards
        # What a device sends in a layer of a decode step: bytes, and links in a row.
        c, count = decoder.config, mesh.devices_per_row
        sharing = count // tp  # devices with the same KV head, each of which has rows of its own
        rows = slots / (mesh.size // count)
        groups = map(range, (count, tp, sharing))
        of_row, of_heads, of_rows = (least_hops(group, run.mesh.topology) for group in groups)
        sums = 2 * (count - 1) / count * rows * c.width
        if mesh.head_axes == mesh.product_axes:
            # Exchanges of rows and heads, before and after attention.
            exchanged = 2 * (sharing - 1) / sharing * rows * c.heads * c.head_width / count
            numbers, hops = 2 * sums + exchanged, 2 * (of_row + of_rows)
        else:  # the sum of own rows, which the others then receive
            own = (2 * (tp - 1) / tp / sharing + (sharing - 1) / sharing) * rows * c.width
            numbers, hops = sums + own, of_row + of_heads + of_rows
        sent = numbers * jnp.dtype(decoder.dtype).itemsize
        of_layer = sent / chip.network + hops * chip.latency
        return {
            "products": tokens * self.flops_of_token * share / mesh.row_shards / chip.flops,
            "memory": steps * read / chip.bandwidth,
            "network": steps * decoder.config.layers * of_layer,
        }

    @property
    def flops_of_token(self) -> float:
        """The operations of the forward pass for a token, on one device."""
        return self.traced.flops / (self.layout.rows * self.layout.columns)


def arrays(jaxpr: Jaxpr) -> Iterator[Any]:
    """Yields the shapes of all results in a program."""
    for equation in jaxpr.eqns:
        yield from (x.aval for x in equation.outvars)
        for child in children(equation.params):
            yield from arrays(child)


def is_scores(shape: tuple[int, ...], decoder: Decoder) -> bool:
    """Returns whether an array has the scores of attention: [..., K, M, S] or [..., K, G, T, S]."""
    c = decoder.config
    K, group, h = c.num_kv_heads, c.heads // c.num_kv_heads, c.head_width
    merged = shape[-3:-2] == (K,) and h not in shape[-2:] and len(shape) > 3
    return merged or (shape[-4:-2] == (K, group) and h not in shape[-1:])
