"""The models of a run: its policy, the weights of another run, the reference and the teacher.

The positions of the policy limit the tokens of a prompt and a response.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
from omegaconf import DictConfig

from rl4p.base.errors import InputError
from rl4p.base.storage import is_address
from rl4p.base.types import Array, Params, Prompt
from rl4p.configuration import instantiate
from rl4p.configuration.bounds import Natural
from rl4p.configuration.capability import ReadPath
from rl4p.distributed import placement
from rl4p.distributed.mesh import Mesh
from rl4p.distributed.partition import narrowed
from rl4p.distributed.placement import like_of, offloaded
from rl4p.distributed.processes import agreed, first
from rl4p.loop.phases import Phases
from rl4p.model.decoder import Decoder
from rl4p.model.policy import Policy, padded_width
from rl4p.protocols.engine import OpensEngine
from rl4p.protocols.phases import Distils
from rl4p.protocols.traits import RolloutTraits
from rl4p.rollout.sampler import without_annealing
from rl4p.runs.checkpoint import restore_params
from rl4p.runs.folder import run_folder, saved_config
from rl4p.runs.saved_steps import Choice, chosen_step

if TYPE_CHECKING:  # imported where it is used: it brings the clients of servers
    from rl4p.loop.teacher import OwnTeacher, ServedTeacher

MOST_BY_DEFAULT = 4096  # tokens: a few prompts that are far longer would widen all rows


def load_policy(
    config: DictConfig, run: Path | None, *, step: Choice = None, average: bool = False
) -> tuple[Policy, Params, int | None]:
    """Returns the policy of a configuration, its parameters, and the step of their checkpoint.

    Args:
      run: the folder of a run; None keeps the initial parameters of the model, of no step.
      step: the step of the checkpoint, or `best`; None selects the newest.
      average: whether to read the moving average of the parameters.
    """
    mesh = instantiate(config.mesh)
    key = jax.random.fold_in(mesh.key(config.seed), 0)
    policy, params = instantiate(config.model).build(mesh, key)
    if run is None:
        return policy, params, None
    like = like_of(params)
    del params  # frees the memory before the checkpoint is loaded
    restored, params = restore_params(run, like, step=step, average=average)
    return policy, params, restored


def run_sampler(config: DictConfig) -> Any:
    """Returns `rollout`, or `evaluation.rollout` if the rollout of the run samples nothing.

    Its temperature does not change with the step of a checkpoint.
    """
    rollouts: list[Any] = [instantiate(config.rollout)]
    if config.evaluation.rollout is not None:
        rollouts.append(instantiate(config.evaluation.rollout))
    for rollout in rollouts:
        if isinstance(rollout, OpensEngine):
            return without_annealing(rollout)
    raise InputError(
        f"rollout ({config.rollout._target_}) does not sample with an engine: choose "
        "rollout=continuous."
    )


@dataclass(frozen=True, kw_only=True)
class RunModel:
    """The model of a run, with the weights of one of its checkpoints.

    The new run has its own optimizer, data and phases; only the model is taken over.

    Attributes:
      run: the folder of the run, its address in an object store, `latest`, or the folder of one of
        its checkpoints.
      checkpoint: the step of the checkpoint, `best`, or `newest`. A run records the step that it
        began with.
      average: whether to begin with the moving average of the parameters.
      score_head: whether a score takes the place of the token head (`pretrained.Pretrained`).
    """

    run: ReadPath
    checkpoint: Natural | Literal["newest", "best"] = "newest"
    average: bool = False
    score_head: bool = False

    @property
    def place(self) -> tuple[str, Path, Choice]:
        """The folder or address of the run, its folder here, and the choice of a checkpoint."""
        run, choice, path = self.run, self.checkpoint, Path(self.run)
        if path.parent.name == "checkpoints" and path.name.isdecimal():
            run, choice = run.rstrip("/").rsplit("/", 2)[0], int(path.name)
        return run, run_folder(run, key="model.run"), None if choice == "newest" else choice

    def recorded(self) -> dict[str, Any]:
        """Returns the options with which this model is found again after the run has gone on."""
        run, folder, choice = self.place
        step = agreed(chosen_step(folder / "checkpoints", choice) if first() else None)
        return {"run": run if is_address(self.run) else str(folder), "checkpoint": step}

    def build(self, mesh: Mesh, key: Array) -> tuple[Policy, Params]:
        """Returns the policy and the parameters of the checkpoint; `key` has no effect."""
        folder = self.place[1]
        config = saved_config(folder, ("model", "seed"), (), ())
        step = self.recorded()["checkpoint"]
        policy, params = instantiate(config.model).build(mesh, jax.random.key(config.seed))
        like = like_of(params)
        del params  # frees the memory before the checkpoint is loaded
        params = restore_params(folder, like, step=step, average=self.average)[1]
        if not self.score_head:
            return policy, params
        return policy.with_score_head(params, placement.init)

    def abstract(self, mesh: Mesh) -> tuple[Policy, Params]:
        """Returns the policy and the shapes of its parameters, without weights."""
        config = saved_config(self.place[1], ("model", "seed"), (), ())
        policy, params = instantiate(config.model).abstract(mesh)
        if not self.score_head:
            return policy, params
        return policy.with_score_head(params, placement.shapes)


def build_reference(
    config: DictConfig, policy: Policy, params: Params, key: Array, needs: Collection[str]
) -> tuple[tuple[Decoder, Params] | None, Params]:
    """Returns the decoder and parameters of the reference, or None if nothing needs it.

    A reference that is reset is part of the state of training: the second value has its parameters,
    which are {} otherwise. Without a model of its own, the reference is the initial policy of the
    run: the base model of adapters (with those that it began with, if they were read), or a copy.
    """
    refuse_options_of_reference(config, policy, needs)
    if "reference_logprobs" not in needs:
        return None, {}
    node, every = config.reference.model, config.reference.reset_every
    place = offloaded if config.reference.offload else lambda params: params
    if node is None:
        if every:
            return None, place(jax.tree.map(jnp.copy, params))
        return (policy.decoder, place(reference_params(policy, params))), {}
    model, own = build_beside(node, "reference", policy, jax.random.fold_in(key, 3))
    if not every:
        return (model.decoder, place(narrowed(model.merged(own), model.decoder.dtype))), {}
    if model.decoder.config != policy.decoder.config or policy.frozen or model.frozen:
        raise InputError(
            "reference.reset_every needs a reference.model of the policy's shape, without "
            "adapters, because the policy takes its place: leave one of them out."
        )
    return None, place(own)


def refuse_options_of_reference(config: DictConfig, policy: Policy, needs: Collection[str]) -> None:
    """Refuses options of `reference` that cannot act."""
    options = config.reference
    if "reference_logprobs" not in needs:
        given = {
            "model": options.model is not None,
            f"reset_every={options.reset_every}": options.reset_every > 0,
            "offload=true": options.offload,
        }
        if option := next((name for name, is_given in given.items() if is_given), None):
            raise InputError(
                f"reference.{option} has no effect, because no phase compares with a reference: "
                "choose kl=fixed, or leave it out."
            )
    elif options.reset_every >= config.steps:
        raise InputError(
            f"reference.reset_every={options.reset_every} never resets the reference of a run of "
            f"steps={config.steps}: set fewer, or leave it out."
        )
    elif options.offload and policy.frozen and options.model is None and not options.reset_every:
        raise InputError(
            "reference.offload=true has no effect with adapters, because the reference is the base "
            "model, which the policy reads too: leave it out."
        )


def reference_params(policy: Policy, params: Params) -> Params:
    """Returns the initial policy of the run: the base model of adapters, or a `narrowed` copy.

    Adapters that were read are part of it, and copied.
    """
    if policy.adapted:
        return policy.merged(jax.tree.map(jnp.copy, params))
    return policy.frozen or narrowed(params, policy.decoder.dtype)


def other_teacher(config: DictConfig, phases: Phases) -> "OwnTeacher | ServedTeacher | None":
    """Returns the teacher if the run builds no model for it: the policy itself, or servers.

    Raises:
      InputError: it cannot act with the phases, or its weights do not exist.
    """
    if config.teacher is None:
        return None
    from rl4p.loop.teacher import OwnTeacher, ServedTeacher

    teacher = instantiate(config.teacher)
    if isinstance(teacher, ServedTeacher):
        refuse_what_servers_cannot_score(config, phases, teacher)
        return teacher
    if not isinstance(teacher, OwnTeacher):
        return None
    if isinstance(phases.update, Distils):
        raise InputError(
            "teacher=own_teacher reads other prompts than the policy, so it has no distribution "
            "beside the policy's rows: choose advantage=distill and update=reinforce."
        )
    if teacher.weights == "start" and (config.reference.model or config.reference.reset_every):
        raise InputError(
            "teacher.weights=start has the weights of the beginning of the run, which "
            "reference.model and reference.reset_every replace: leave them out."
        )
    if teacher.weights == "average" and not config.ema.decay:
        raise InputError("teacher.weights=average needs a moving average: set ema.decay=0.99.")
    if RolloutTraits.read(phases.rollout).many_turns:
        raise InputError(
            "teacher=own_teacher changes the prompt of a single response, but the rollout has "
            "episodes of several turns: choose another rollout."
        )
    return teacher


def refuse_what_servers_cannot_score(
    config: DictConfig, phases: Phases, teacher: "ServedTeacher"
) -> None:
    """Refuses phases that need more of a teacher than log-probabilities at temperature 1."""
    if isinstance(phases.update, Distils):
        raise InputError(
            "teacher=served_teacher returns the log-probabilities of given tokens, but the update "
            "compares distributions over the whole vocabulary: choose advantage=distill and "
            "update=reinforce, or a local teacher (+model@teacher=pretrained)."
        )
    own = phases.rollout.sampling
    given = own.temperature, own.top_k, own.top_p, own.min_p
    if given != (1, 0, 1, 0) or phases.temperature(0):
        raise InputError(
            "teacher=served_teacher scores at temperature 1 over the whole vocabulary, but the "
            "rollout samples otherwise: set its temperature, top_k, top_p and min_p to 1, 0, 1 and "
            "0, and its annealing to null."
        )
    weights = {url.rstrip("/") for url in config.rollout.get("servers") or ()}
    if both := sorted(weights & {url.rstrip("/") for url in teacher.servers}):
        raise InputError(
            f"teacher.servers names {both[0]}, which has the policy's weights, because "
            "rollout.servers names it too: choose another server."
        )


def build_teacher(config: DictConfig, policy: Policy, key: Array) -> tuple[Decoder, Params] | None:
    """Returns the decoder and the parameters of the teacher; None if no phase needs one."""
    if config.teacher is None:
        return None
    teacher, params = build_beside(config.teacher, "teacher", policy, jax.random.fold_in(key, 2))
    return teacher.decoder, narrowed(teacher.merged(params), teacher.decoder.dtype)


def build_beside(node: DictConfig, name: str, policy: Policy, key: Array) -> tuple[Policy, Params]:
    """Builds a model that scores the tokens of the policy."""
    other, params = instantiate(node).build(policy.mesh, key)
    if other.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
        raise InputError(f"The {name} must have the policy's tokenizer: their vocabularies differ.")
    drawn, known = policy.decoder.config.vocabulary, other.decoder.config.vocabulary
    if drawn > known:
        raise InputError(
            f"The policy can sample token ids below {drawn}, but the {name}'s embedding has only "
            f"{known} rows, so it cannot score all of them."
        )
    return other, params


def check_lengths(config: DictConfig, policy: Policy, *response_limits: int) -> None:
    """Refuses rows that are longer than the positions of the model.

    Args:
      response_limits: the limits of the rollouts, which are those of the run.
    """
    if set(response_limits) != {config.max_response_tokens}:
        raise InputError(
            "The rollout must use the top-level max_response_tokens: set only that one."
        )
    limit = policy.decoder.config.max_positions
    if config.max_prompt_tokens is None:
        if config.max_response_tokens >= limit:
            raise InputError(
                f"max_response_tokens={config.max_response_tokens} and a prompt is more than the "
                f"{limit} positions of the model."
            )
        return
    longest = config.max_prompt_tokens + config.max_response_tokens
    if longest > limit:
        raise InputError(
            f"max_prompt_tokens + max_response_tokens = {longest} is more than the {limit} "
            "positions of the model."
        )


def most_prompt_tokens(config: DictConfig, policy: Policy) -> int:
    """Returns `max_prompt_tokens`; by default what the response leaves, or `MOST_BY_DEFAULT`."""
    if config.max_prompt_tokens is not None:
        return config.max_prompt_tokens
    room = policy.decoder.config.max_positions - config.max_response_tokens
    return min(MOST_BY_DEFAULT, room)


def chosen_prompt_tokens(most: int, sets: Iterable[Sequence[Prompt]]) -> int:
    """Returns `max_prompt_tokens` for prompts of at most `most` tokens: the longest, rounded up."""
    longest = max(len(prompt.tokens) for prompts in sets for prompt in prompts)
    return min(most, padded_width(longest))
