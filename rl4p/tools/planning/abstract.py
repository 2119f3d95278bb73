"""The arguments of a run's functions as shapes with shardings; no array is allocated."""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from omegaconf import DictConfig, OmegaConf

from rl4p.base.errors import InputError
from rl4p.base.types import Params, TrainingBatch, TrainState, Trajectories
from rl4p.configuration import instantiate
from rl4p.data.prompts import prompted
from rl4p.distributed import placement
from rl4p.distributed.mesh import Mesh
from rl4p.distributed.partition import changed_for_decoding, decoding_dtype, for_decoding
from rl4p.distributed.placement import HOST, is_offloaded
from rl4p.loop.phases import Phases
from rl4p.model.decoder import Decoder
from rl4p.model.pattern import places
from rl4p.model.policy import Policy, padded_width
from rl4p.protocols.collection import KeepsCopies
from rl4p.protocols.data_and_model import DataSet, PlannedModel
from rl4p.protocols.phases import Optimizer
from rl4p.protocols.traits import CollectorTraits, OptimizerTraits, RolloutTraits
from rl4p.runs.build import build_phases, check_rows, training_encoder
from rl4p.runs.compatibility import (
    refuse_idle_routers,
    refuse_missing_or_idle_teachers,
    refuse_offloading_on_a_cpu,
)
from rl4p.runs.evaluation import encoder
from rl4p.runs.policy import (
    check_lengths,
    chosen_prompt_tokens,
    most_prompt_tokens,
    other_teacher,
    refuse_options_of_reference,
)
from rl4p.tools.planning.topology import DescribedMesh

# The names in `Phases.needs` whose scores are [B] instead of [B, T].
OF_ROWS = {"greedy_rewards", "answer_clusters", "margins", "right", "task_ids"}


@dataclass(frozen=True, kw_only=True)
class AbstractRun:
    """The parts of a run as shapes, with every prompt and every response at its maximum length."""

    mesh: Mesh
    policy: Policy
    phases: Phases
    optimizer: Optimizer
    state: TrainState
    # The frozen parameters, the reference if it is a copy of the initial policy, the teacher, and
    # the copies of the parameters that the collector keeps.
    frozen: Params
    # prompts, group_size, prompt_columns, response_tokens: P, G, and the two parts of T
    prompts: int
    group_size: int
    prompt_columns: int
    response_tokens: int
    # The decoder and the parameters of the reference; None if nothing needs it.
    reference: tuple[Decoder, Params] | None = None
    teacher: tuple[Decoder, Params] | None = None  # the same of the teacher
    overlaps: bool = False  # whether the collector samples during updates
    # Whether `xla` takes the place of `cudnn`, which only NVIDIA GPUs can compile.
    lacks_cudnn: bool = False

    @property
    def can_offload(self) -> bool:
        """Whether the optimizer has a state that `optimizer.offload` would move to the host."""
        offers = getattr(self.optimizer, "offload", None) is False and self.mesh.platform != "cpu"
        return offers and any(x.ndim for x in jax.tree.leaves(self.state.optimizer_state))

    @property
    def sequences(self) -> int:
        return self.prompts * self.group_size

    @property
    def resident(self) -> Any:
        """Returns the arrays that stay on the devices during the whole run."""
        return self.state, self.frozen

    def resident_while_sampling(self) -> Any:
        """Returns the arrays that are on the sampling mesh while it samples."""
        if self.mesh.rollout_devices:
            return self.sampling_params()
        return self.resident, self.copied_for_sampling()

    def sampling_params(self) -> Params:
        """Returns the parameters of the policy, prepared for decoding on the sampling mesh."""
        policy = self.policy
        whole = policy.without_critic(self.state.params)
        own, mesh = RolloutTraits.read(self.phases.rollout).dtype, policy.sampling_mesh
        dtype = policy.decoder.dtype if own == "auto" else own
        changed = {name: whole[name] for name in changed_for_decoding(whole, dtype)}
        at = places(policy.decoder.config)
        new = jax.eval_shape(partial(for_decoding, dtype=dtype, places=at), changed)
        if mesh is not self.mesh or self.mesh.devices.shape["fsdp"] > 1:
            new = whole | new  # the sharding of every parameter changes
        return whole | placement.with_shardings(new, placement.sampling_shardings(mesh, new))

    def copied_for_sampling(self) -> Params:
        """Returns the sampling parameters that do not share their arrays with the trained ones."""
        whole = self.policy.without_critic(self.state.params)
        return {name: x for name, x in self.sampling_params().items() if x is not whole[name]}

    def rows(self, shape: tuple[int, ...], dtype: Any, mesh: Mesh | None = None) -> Any:
        """Returns the shape of an array whose rows are sharded over a mesh."""
        return jax.ShapeDtypeStruct(shape, dtype, sharding=(mesh or self.mesh).rows)

    def replicated(self, tree: Any, mesh: Mesh | None = None) -> Any:
        """Returns the shapes of arrays that are replicated on a mesh."""
        place = (mesh or self.mesh).replicated
        return placement.with_shardings(tree, jax.tree.map(lambda _: place, tree))

    def bytes_of(self, tree: Any) -> int:
        """Returns the bytes of arrays on one device."""
        return bytes_of_chip(tree)

    def bytes_per_decode_step(self, params: Params) -> int:
        """Returns the bytes of parameters that a device reads in a decode step: layers and head."""
        return bytes_of_chip((params["layers"], params.get("head", params["embedding"])))

    def trajectories(self) -> Trajectories:
        B, T = self.sequences, self.prompt_columns + self.response_tokens
        A = RolloutTraits.read(self.phases.rollout).recorded
        return Trajectories(
            tokens_BT=self.rows((B, T), jnp.int32),
            response_mask_BT=self.rows((B, T), jnp.bool_),
            positions_BT=self.rows((B, T), jnp.int32),
            segment_ids_BT=self.rows((B, T), jnp.int32),
            behaviour_logprobs_BT=self.rows((B, T), jnp.float32),
            policy_version_BT=self.rows((B, T), jnp.int32),
            group_ids_B=self.rows((B,), jnp.int32),
            finish_B=self.rows((B,), jnp.int8),
            alternatives_BTA=self.rows((B, T, A), jnp.int32) if A else None,
            alternative_logprobs_BTA=self.rows((B, T, A), jnp.float32) if A else None,
            group_size=self.group_size,
            prompt_columns=self.prompt_columns,
        )

    def batch(self) -> TrainingBatch:
        trajectories = self.trajectories()
        B, T = trajectories.tokens_BT.shape
        names = self.phases.needs() | ({"returns"} if self.phases.critic.active else set())
        return TrainingBatch(
            trajectories=trajectories,
            advantages_BT=self.rows((B, T), jnp.float32),
            loss_mask_BT=self.rows((B, T), jnp.bool_),
            scores={
                name: self.rows((B,) if name in OF_ROWS else (B, T), jnp.float32)
                for name in sorted(names)
            },
        )


def abstract_run(config: DictConfig, mesh: Mesh) -> AbstractRun:
    """Returns the run that a configuration describes, on a mesh whose devices may be absent.

    Raises:
      InputError: parts are incompatible, as in `experiment.build`.
    """
    phases = build_phases(config)
    check_rows(config, phases, mesh)
    needs = phases.needs()
    refuse_missing_or_idle_teachers(config, phases)
    model = instantiate(config.model)
    if not isinstance(model, PlannedModel):
        raise InputError(
            f"model._target_={config.model._target_} cannot be planned: it needs a method "
            "`abstract(mesh)`, which returns the policy and the shapes of its parameters."
        )
    own, params = model.abstract(mesh)
    policy = compilable(own, mesh)
    check_lengths(config, policy, phases.rollout.max_response_tokens)
    if (prompt_tokens := config.max_prompt_tokens) is None:
        prompt_tokens = prompt_tokens_of_data(config, policy, phases)
        OmegaConf.update(config, "max_prompt_tokens", prompt_tokens)
    refuse_idle_routers(phases, policy)
    whole = policy.merged(params)
    frozen = [policy.frozen]
    own_scores = other_teacher(config, phases)
    if own_scores is not None:
        needs |= own_scores.needs
    reference, resettable = reference_of(config, policy, params, needs)
    if reference is not None and not resettable and reference[1] is not policy.frozen:
        frozen.append(reference[1])
    teacher = None
    if config.teacher is not None and own_scores is None:
        teacher = beside(config.teacher, policy)
        frozen.append(teacher[1])
    if phases.estimator is not None:
        critic = partial(phases.estimator.init, policy.decoder)
        params = params | {"critic": placement.shapes(mesh, critic, whole)}
    collector = instantiate(config.collector)
    copies = 0
    if isinstance(collector, KeepsCopies):
        copies = collector.copies(not mesh.rollout_devices)
    if RolloutTraits.read(phases.rollout).sync_every > 1:
        copies = max(1, copies)  # `SyncedWeights`, whose copy engines share
    frozen += [params] * copies
    optimizer = instantiate(config.optimizer)
    refuse_offloading_on_a_cpu(config, mesh, optimizer)
    moments = jax.eval_shape(optimizer.transform().init, params)
    offload = OptimizerTraits.read(optimizer).offload
    shardings = placement.optimizer_state_shardings(mesh, moments, params, offload=offload)
    step: Any = jax.ShapeDtypeStruct((), jnp.int32, sharding=mesh.replicated)
    key = jax.eval_shape(lambda: jax.random.key(0)).update(sharding=mesh.replicated)
    state = TrainState(
        step=step,
        params=params,
        optimizer_state=placement.with_shardings(moments, shardings),
        key=key,
        memory={},
        average=params if config.ema.decay else {},
        reference=resettable,
    )
    return AbstractRun(
        mesh=mesh,
        policy=policy,
        phases=phases,
        optimizer=optimizer,
        state=state,
        frozen=frozen,
        prompts=config.prompts_per_step,
        group_size=config.group_size,
        prompt_columns=padded_width(prompt_tokens),
        response_tokens=config.max_response_tokens,
        reference=reference,
        teacher=teacher,
        overlaps=CollectorTraits.read(collector).overlaps and not mesh.rollout_devices,
        lacks_cudnn=policy is not own,
    )


def prompt_tokens_of_data(config: DictConfig, policy: Policy, phases: Phases) -> int:
    """Returns the `max_prompt_tokens` that a run of this configuration chooses from its data."""
    try:
        data: DataSet = instantiate(config.data)
        encode = training_encoder(config, policy, phases, data)
        sets = [encode(prompted(data, data.train()), system_prompt=data.system_prompt)[0]]
        held_out = prompted(data, data.held_out()) if config.evaluation.held_out else ()
        if held_out:
            encode = encoder(config, policy)
            sets.append(encode(held_out, system_prompt=data.system_prompt)[0])
    except InputError as error:
        raise InputError(
            f"{error} A plan reads the data for the longest prompt: max_prompt_tokens=N needs none."
        ) from error
    return chosen_prompt_tokens(most_prompt_tokens(config, policy), sets)


def compilable(policy: Policy, mesh: Mesh) -> Policy:
    """Returns the policy with `xla` in place of `cudnn`, if the GPUs of a mesh are absent."""
    if policy.decoder.attention != "cudnn" or not isinstance(mesh, DescribedMesh):
        return policy
    return replace(policy, decoder=replace(policy.decoder, attention="xla"))


def reference_of(
    config: DictConfig, policy: Policy, params: Params, needs: Collection[str]
) -> tuple[tuple[Decoder, Params] | None, Params]:
    """Returns what `build_reference` would, with shapes, and a reference that is reset in both."""
    refuse_options_of_reference(config, policy, needs)
    if "reference_logprobs" not in needs:
        return None, {}
    options = config.reference
    place = of_host if options.offload else lambda shapes: shapes
    if options.reset_every:
        resettable = place(params)
        return (policy.decoder, policy.merged(resettable)), resettable
    if options.model is not None:
        decoder, copy = beside(options.model, policy)
    elif policy.frozen:
        return (policy.decoder, policy.frozen), {}
    else:
        decoder, copy = policy.decoder, narrowed_shapes(params, policy.decoder.dtype)
    return (decoder, place(copy)), {}


def beside(node: DictConfig, policy: Policy) -> tuple[Decoder, Params]:
    """Returns what `build_beside` would, narrowed, with shapes."""
    other, weights = instantiate(node).abstract(policy.mesh)
    decoder = compilable(other, policy.mesh).decoder
    return decoder, narrowed_shapes(other.merged(weights), decoder.dtype)


def narrowed_shapes(params: Params, dtype: str) -> Params:
    """Returns the shapes of `partition.narrowed`."""
    return jax.tree.map_with_path(
        lambda path, x: x.update(dtype=decoding_dtype(path, x, dtype)), params
    )


def of_host(tree: Any) -> Any:
    """Returns the shapes of arrays in the memory of the host."""
    places = jax.tree.map(lambda x: x.sharding.with_memory_kind(HOST), tree)
    return placement.with_shardings(tree, places)


def bytes_of_chip(tree: Any, *, in_host: bool = False) -> int:
    """Returns the bytes that one device holds of these arrays, or that the host holds for it."""
    total = 0
    for x in jax.tree.leaves(tree):
        if is_offloaded(x) == in_host:
            is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
            shape = x.sharding.shard_shape(x.shape) if x.sharding is not None else x.shape
            total += math.prod(shape) * (8 if is_key else jnp.dtype(x.dtype).itemsize)
    return total
