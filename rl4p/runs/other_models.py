"""The models beside the policy that score its tokens: the reference and the teacher."""

from collections.abc import Collection

import jax
import jax.numpy as jnp
from omegaconf import DictConfig

from rl4p.base.errors import InputError
from rl4p.base.types import Array, Params
from rl4p.configuration import instantiate
from rl4p.distributed.host_memory import offloaded
from rl4p.distributed.partition import narrowed
from rl4p.model.decoder import Decoder
from rl4p.model.policy import Policy


def build_reference(
    config: DictConfig, policy: Policy, params: Params, key: Array, needs: Collection[str]
) -> tuple[tuple[Decoder, Params] | None, Params]:
    """Returns the decoder and parameters of the reference, or None if nothing needs it.

    A reference that is reset is part of the state of training: the second value has its parameters,
    which are {} otherwise. Without a model of its own, the reference is the initial policy of the
    run: the base model of adapters, or a copy.

    Raises:
      InputError: an option of `reference` cannot act, or its model does not fit.
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
    """Refuses options of `reference` that cannot act.

    Raises:
      InputError: an option would have no effect.
    """
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
    """Returns the initial policy of the run: the base model of adapters, or a `narrowed` copy."""
    return policy.frozen or narrowed(params, policy.decoder.dtype)


def build_teacher(config: DictConfig, policy: Policy, key: Array) -> tuple[Decoder, Params]:
    if config.teacher is None:
        raise InputError(
            "The advantage needs a teacher: add +model@teacher=pretrained teacher.path=FOLDER."
        )
    teacher, params = build_beside(config.teacher, "teacher", policy, jax.random.fold_in(key, 2))
    return teacher.decoder, narrowed(teacher.merged(params), teacher.decoder.dtype)


def build_beside(node: DictConfig, name: str, policy: Policy, key: Array) -> tuple[Policy, Params]:
    """Builds a model that scores the tokens of the policy.

    Raises:
      InputError: it has another vocabulary, or fewer rows in its embedding.
    """
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
