"""A policy that begins with the weights of another run."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import jax

from rl4p.base.storage import is_address
from rl4p.base.types import Array, Params
from rl4p.configuration import instantiate
from rl4p.configuration.bounds import Natural
from rl4p.configuration.capability import ReadPath
from rl4p.distributed.mesh import Mesh
from rl4p.distributed.placement import like_of
from rl4p.distributed.processes import agreed, first
from rl4p.model.policy import Policy
from rl4p.runs.checkpoint import restore_params
from rl4p.runs.folder import run_folder, saved_config
from rl4p.runs.saved_steps import chosen_step


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
    """

    run: ReadPath
    checkpoint: Natural | Literal["newest", "best"] = "newest"
    average: bool = False

    @property
    def folder(self) -> Path:
        return run_folder(self.of_run, key="model.run")

    @property
    def of_run(self) -> str:
        """The folder or the address of the run."""
        return self.run.rstrip("/").rsplit("/", 2)[0] if self.of_a_checkpoint else self.run

    @property
    def of_a_checkpoint(self) -> bool:
        path = Path(self.run)
        return path.parent.name == "checkpoints" and path.name.isdecimal()

    def recorded(self) -> dict[str, Any]:
        """Returns the options with which this model is found again after the run has gone on."""
        given: Any = int(Path(self.run).name) if self.of_a_checkpoint else self.checkpoint
        choice = None if given == "newest" else given
        step = agreed(chosen_step(self.folder / "checkpoints", choice) if first() else None)
        run = self.of_run if is_address(self.run) else str(self.folder)
        return {"run": run, "checkpoint": step}

    def saved(self) -> Any:
        """Returns the configuration of the run's model and its seed."""
        return saved_config(self.folder, ("model", "seed"), (), ())

    def build(self, mesh: Mesh, key: Array) -> tuple[Policy, Params]:
        """Returns the policy and the parameters of the checkpoint; `key` has no effect."""
        config, of_run = self.saved(), replace(self, **self.recorded())
        policy, params = instantiate(config.model).build(mesh, jax.random.key(config.seed))
        like = like_of(params)
        del params  # frees the memory before the checkpoint is loaded
        step: Any = of_run.checkpoint
        return policy, restore_params(self.folder, like, step=step, average=self.average)[1]

    def abstract(self, mesh: Mesh) -> tuple[Policy, Params]:
        """Returns the policy and the shapes of its parameters, without weights."""
        return instantiate(self.saved().model).abstract(mesh)
