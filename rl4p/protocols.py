"""The contracts: what a phase is given, and what it gives back.

A phase is a frozen dataclass with one pure ``__call__``; its fields are its options. Write one in a
package of your own and name it in YAML or on the command line (README, "A phase of your own"). The
Protocols are structural: nothing has to be registered, and only an update inherits its options.

Two things any phase may have beside its call:

* ``needs``: a frozenset of names from {"proximal_logprobs"}: float32 [B, T] arrays that the loop
  computes before the update and passes as ``batch.scores[name]``. Only what is asked for is
  computed; without it no extra forward runs.
* ``initial_state()``: makes a phase one with memory (a running baseline, say); any phase but an
  update. The call then takes one more argument, ``memory``, and returns ``(result, memory)``; the
  loop keeps it in `TrainState.memory` and checkpoints it. Its leaves are arrays.

Shapes are explained in `types.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import optax

from rl4p.data.stream import PromptStream
from rl4p.mesh import Mesh
from rl4p.model.policy import Policy
from rl4p.stopwatch import Stopwatch
from rl4p.types import (
    Array,
    Params,
    Prompt,
    Question,
    Rewards,
    Sampling,
    StepInfo,
    Texts,
    TrainingBatch,
    TrainState,
    Trajectories,
)

if TYPE_CHECKING:
    from rl4p.phases import Phases


class Rollout(Protocol):
    """Prompts to trajectories."""

    @property
    def sampling(self) -> Sampling:
        """The distribution that the tokens are drawn from; the trainer scores them under it."""
        ...

    @property
    def max_response_tokens(self) -> int:
        """The limit of a response in tokens, the end token included."""
        ...

    def __call__(
        self,
        policy: Policy,
        params: Params,
        prompts: Sequence[Prompt],
        *,
        group_size: int,
        key: Array,
        version: int,
        greedy: bool = False,
    ) -> tuple[Trajectories, Texts]:
        """Draws `group_size` responses to each of P prompts.

        Args:
          policy: decoder, tokenizer and mesh.
          params: the parameters to sample with.
          prompts: P prompts; P x group_size divides by the devices of the mesh.
          group_size: G.
          key: a random key that nobody else uses.
          version: written to `policy_version_B`: the step whose parameters these are (-1 there says
            that no policy chose the tokens).
          greedy: take the most probable token always (evaluation).

        Returns:
          B = P x G trajectories, and their texts in the same order.
        """
        ...


class Reward(Protocol):
    """Texts to grades."""

    def __call__(self, trajectories: Trajectories, texts: Texts) -> Rewards:
        """Grades every trajectory on the host.

        Raises:
          RunError: a grader is broken (raised, or returned the wrong number of grades).
        """
        ...


class RewardTerm(Protocol):
    """One weighted term of `reward=weighted`."""

    @property
    def weight(self) -> float: ...

    def __call__(self, texts: Texts) -> Sequence[float | None]:
        """One grade per row; None or a number that is not finite marks the sample invalid."""
        ...


class Advantage(Protocol):
    """Grades to one number per token. Pure JAX: the loop compiles it."""

    def __call__(self, trajectories: Trajectories, rewards: Rewards) -> Array:
        """Returns float32 [B, T], 0 outside the response mask and on invalid samples."""
        ...


class Update(Protocol):
    """A policy loss. Pure JAX: `update/gradient_step.py` differentiates, sums and applies it.

    The fields of `update/options.py` come with it: derive from `UpdateOptions`.
    """

    aggregation: Any
    aggregation_length: int
    epochs: int
    minibatches: int
    tokens_per_microbatch: int

    def __call__(self, logprobs_BT: Array, batch: TrainingBatch) -> tuple[Array, dict[str, Array]]:
        """The loss of each token, to minimise.

        Args:
          logprobs_BT: float32, under the parameters being trained; 0 outside the loss mask.
          batch: a microbatch; ``batch.scores["proximal_logprobs"]`` is always there (where it was
            not asked for, it is `logprobs_BT` without its gradient).

        Returns:
          loss_BT float32, and metrics as arrays [B, T]: both are read on the loss mask only.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Collected:
    """Graded trajectories, and the memory of the phases after they were collected."""

    trajectories: Trajectories
    texts: Texts
    rewards: Rewards
    memory: dict[str, Any]


class Collector(Protocol):
    """Drives rollout and reward: how prompts become graded trajectories."""

    def __call__(
        self,
        phases: "Phases",
        policy: Policy,
        state: TrainState,
        stream: PromptStream,
        watch: Stopwatch,
        *,
        prompts_per_step: int,
        group_size: int,
    ) -> Collected:
        """Collects the P x G trajectories of one step; takes its prompts from the stream."""
        ...


class Optimizer(Protocol):
    """A direction and a learning rate, kept apart so that the rate is a metric."""

    def transform(self) -> optax.GradientTransformation:
        """The update at learning rate 1."""
        ...

    def learning_rate_at(self, step: Array | int) -> Array: ...


class DataSet(Protocol):
    """Questions to train on, and questions held out."""

    @property
    def system_prompt(self) -> str | None: ...

    def train(self) -> Sequence[Question]: ...

    def held_out(self) -> Sequence[Question]: ...


class Model(Protocol):
    """Where the policy comes from."""

    def build(self, mesh: Mesh, key: Array) -> tuple[Policy, Params]:
        """The policy, and its parameters on the mesh."""
        ...


class Hook(Protocol):
    """A side effect after every `every`-th step of the loop, and after the last."""

    @property
    def every(self) -> int: ...

    def __call__(self, info: StepInfo) -> dict[str, float] | None:
        """Returns metrics to add to those of the step, for the hooks after this one."""
        ...
