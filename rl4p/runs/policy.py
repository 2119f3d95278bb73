"""The policy of a run folder or of a configuration, without the optimizer and the loop."""

from pathlib import Path
from typing import Any

import jax
from omegaconf import DictConfig

from rl4p.base.errors import InputError
from rl4p.base.types import Params
from rl4p.configuration import instantiate
from rl4p.distributed.placement import like_of
from rl4p.model.policy import Policy
from rl4p.protocols.engine import OpensEngine
from rl4p.rollout.sampler import without_annealing
from rl4p.runs.checkpoint import restore_params
from rl4p.runs.saved_steps import Choice


def load_policy(
    config: DictConfig, run: Path | None, *, step: Choice = None, average: bool = False
) -> tuple[Policy, Params, int | None]:
    """Builds the model of a configuration, with the parameters of a checkpoint if there is a run.

    Args:
      config: the composed configuration, of the run if there is one (`config_of_run`).
      run: the folder of a run; None keeps the initial parameters of the model.
      step: the step of the checkpoint, or `best`; None selects the newest.
      average: whether to read the moving average of the parameters.

    Returns:
      The policy, its parameters, and the step of the checkpoint (None without a run).

    Raises:
      InputError: the model cannot be built, or there is no such checkpoint.
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

    Raises:
      InputError: neither is a sampler with an engine.
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
