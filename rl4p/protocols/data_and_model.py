"""The protocols of data sets, and of models, which build the policy of a run."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from rl4p.base.types import Array, Params, Question
from rl4p.distributed.mesh import Mesh
from rl4p.model.policy import Policy


class DataSet(Protocol):
    """A set of training questions and held-out questions."""

    system_prompt: str | None

    def train(self) -> Sequence[Question]:
        """Returns the questions to train on."""
        ...

    def held_out(self) -> Sequence[Question]:
        """Returns the questions of the evaluation."""
        ...


class Model(Protocol):
    """A source of the policy."""

    def build(self, mesh: Mesh, key: Array) -> tuple[Policy, Params]:
        """Returns the policy, and its parameters on the mesh."""
        ...


@runtime_checkable
class Records(Protocol):
    """A model with options that a run records as the start has chosen them."""

    def recorded(self) -> dict[str, Any]:
        """Returns the chosen values of options by name."""
        ...


@runtime_checkable
class PlannedModel(Model, Protocol):
    """A model that `rl4p.plan` can plan."""

    def abstract(self, mesh: Mesh) -> tuple[Policy, Params]:
        """Returns the policy, and the shapes of its parameters with their shardings."""
        ...
