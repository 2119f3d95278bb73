"""What the functions of a run are given, as shapes with their places: no array is made."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from omegaconf import DictConfig

from rl4p.configuration import instantiate
from rl4p.distributed.mesh import Mesh, with_places
from rl4p.distributed.partition import as_sampled, changed_for_sampling
from rl4p.errors import InputError
from rl4p.experiment.build import build_phases, check_lengths, check_rows
from rl4p.loop.phases import Phases
from rl4p.model.policy import Policy, padded_width
from rl4p.protocols import Optimizer
from rl4p.types import Params, TrainingBatch, TrainState, Trajectories

# Of `Phases.needs`, those that are [B] and not [B, T].
OF_ROWS = {"greedy_rewards", "answer_clusters", "task_ids"}


@dataclass(frozen=True, kw_only=True)
class AbstractRun:
    """The parts of a run at their largest: every prompt and every response as long as it may be.

    Attributes:
      prompts, group_size, prompt_columns, response_tokens: P, G, and the T of a row in two parts.
      frozen: parameters beside those of the state, and a reference that is a copy of them.
    """

    mesh: Mesh
    policy: Policy
    phases: Phases
    optimizer: Optimizer
    state: TrainState
    frozen: Params
    prompts: int
    group_size: int
    prompt_columns: int
    response_tokens: int

    @property
    def sequences(self) -> int:
        return self.prompts * self.group_size

    @property
    def lasting(self) -> Any:
        """What is on the devices all the time."""
        return self.state, self.frozen

    def lasting_where_sampled(self) -> Any:
        """What is all the time on the devices that sample, and the parameters while they do."""
        if self.mesh.sampling is not self.mesh:
            return self.sampling_params()
        return self.lasting, self.handed_over()

    def whole(self) -> Params:
        """Of the policy, as it is trained."""
        return self.policy.whole(self.state.params)

    def without_critic(self) -> Params:
        """The same, without a critic."""
        return self.policy.without_critic(self.state.params)

    def sampling_params(self) -> Params:
        """These, as a sampler reads them."""
        whole, dtype = self.without_critic(), self.policy.decoder.dtype
        changed = {name: whole[name] for name in changed_for_sampling(whole, dtype)}
        new = jax.eval_shape(partial(as_sampled, dtype=dtype), changed)
        if self.mesh.sampling is not self.mesh or self.mesh.devices.shape["fsdp"] > 1:
            new = whole | new  # all of them are moved
        return whole | with_places(new, self.mesh.of_sampling(new))

    def handed_over(self) -> Params:
        """Of these, what is not the very same arrays."""
        whole = self.without_critic()
        return {name: x for name, x in self.sampling_params().items() if x is not whole[name]}

    def reference(self) -> Params:
        """The policy that the run began with."""
        return self.policy.frozen or self.without_critic()

    def rows(self, shape: tuple[int, ...], dtype: Any, mesh: Mesh | None = None) -> Any:
        """Returns the shape of an array whose rows are split over a mesh."""
        return jax.ShapeDtypeStruct(shape, dtype, sharding=(mesh or self.mesh).rows)

    def replicated(self, tree: Any, mesh: Mesh | None = None) -> Any:
        """Returns shapes of arrays that every device of a mesh has whole."""
        return everywhere(mesh or self.mesh, tree)

    def bytes_per_decode_step(self, params: Params, *others: Any) -> float:
        """Returns the bytes that a device reads for one token of its rows: layers, head, others."""
        head = params.get("head", params["embedding"])
        return bytes_of_chip((params["layers"], head, others))

    def trajectories(self) -> Trajectories:
        B, T = self.sequences, self.prompt_columns + self.response_tokens
        return Trajectories(
            tokens_BT=self.rows((B, T), jnp.int32),
            response_mask_BT=self.rows((B, T), jnp.bool_),
            positions_BT=self.rows((B, T), jnp.int32),
            segment_ids_BT=self.rows((B, T), jnp.int32),
            behaviour_logprobs_BT=self.rows((B, T), jnp.float32),
            group_ids_B=self.rows((B,), jnp.int32),
            policy_version_B=self.rows((B,), jnp.int32),
            finish_B=self.rows((B,), jnp.int8),
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
    """The run that a configuration describes, on a mesh that need not be here.

    Raises:
      InputError: parts do not fit one another, as in `experiment.build`.
    """
    phases = build_phases(config)
    check_rows(config, phases, mesh)
    needs = phases.needs()
    model = instantiate(config.model)
    if not hasattr(model, "abstract"):
        raise InputError(
            f"model._target_={config.model._target_} cannot be planned with: it has no method "
            "`abstract(mesh)`, that gives the policy and the shapes of its parameters."
        )
    policy, params = model.abstract(mesh)
    check_lengths(config, policy, phases.rollout.max_response_tokens)
    whole = policy.whole(params)
    frozen = [policy.frozen]
    if "reference_logprobs" in needs and not policy.frozen:
        frozen.append(params)
    if phases.estimator is not None:
        critic = partial(phases.estimator.init, policy.decoder)
        params = params | {"critic": mesh.shapes(critic, whole)}
    optimizer = instantiate(config.optimizer)
    moments = jax.eval_shape(optimizer.transform().init, params)
    key = jax.eval_shape(lambda: jax.random.key(0))
    state = TrainState(
        step=everywhere(mesh, jax.ShapeDtypeStruct((), jnp.int32)),
        params=params,
        optimizer_state=with_places(moments, mesh.of_optimizer_state(moments, params)),
        key=everywhere(mesh, key),
        memory={},
        average=params if config.ema.decay else {},
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
        prompt_columns=padded_width(config.max_prompt_tokens),
        response_tokens=config.max_response_tokens,
    )


def everywhere(mesh: Mesh, tree: Any) -> Any:
    return with_places(tree, jax.tree.map(lambda _: mesh.everywhere, tree))


def bytes_of_chip(tree: Any) -> int:
    """What one device holds of arrays."""

    def of(x: jax.ShapeDtypeStruct) -> int:
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        size = 8 if is_key else jnp.dtype(x.dtype).itemsize
        shape = x.sharding.shard_shape(x.shape) if x.sharding is not None else x.shape
        for n in shape:
            size *= n
        return size

    return sum(map(of, jax.tree.leaves(tree)))
