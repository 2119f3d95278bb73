"""The contracts: what a phase is given, and what it gives back.

A phase is a frozen dataclass with one pure ``__call__``; its fields are its options. Write one in a
package of your own and name it in YAML or on the command line (README, "A phase of your own"). The
Protocols are structural: nothing has to be registered, and only an update inherits its options.

Two things any phase may have beside its call:

* ``needs``: a frozenset of names, for what the loop computes before the advantage. Only what is
  asked for is computed; without it no extra forward runs. An advantage or a correction then takes
  one more argument, ``scores``, with what it asked for; an update finds it in ``batch.scores``. A
  KL penalty may ask for `reference_logprobs`, and an entropy phase for `entropy`. What would not
  reach a phase is refused when the run is built. The names:

      proximal_logprobs, entropy, collision   [B, T], under the policy at the start of the step
      reference_logprobs                      [B, T], under the policy that the run began with
                                              (LoRA: its base)
      teacher_logprobs                        [B, T], under the model in `teacher`
      values                                  [B, T], of the critic; token t's is that of the state
                                              which it is chosen in
      greedy_rewards                          [B], of one greedy response to the row's prompt
      answer_clusters                         [B], equal where two samples end in the same answer
      task_ids                                [B], the row's task among those of the training data

  ``scores.NAME`` in the configuration adds a name of your own (`Score`), [B, T].

* ``initial_state()``: makes a phase one with memory (a running baseline, say): a rollout, a reward,
  an advantage, a KL penalty or an entropy phase. The call then takes one more argument, ``memory``,
  and returns ``(result, memory)``; the loop keeps it in `TrainState.memory` and checkpoints it. Its
  leaves are arrays.

Shapes are explained in `types.py`.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import optax

from rl4p.distributed.mesh import Mesh
from rl4p.model.decoder import Decoder
from rl4p.model.policy import Policy
from rl4p.types import (
    Array,
    Microbatching,
    Params,
    Prompt,
    Question,
    Rewards,
    Sampling,
    Texts,
    TrainingBatch,
    TrainState,
    Trajectories,
)


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
          params: as they are trained; `policy.for_sampling(params)` is what a token reads.
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


@dataclass(frozen=True, kw_only=True)
class PlannedProgram:
    """A compiled function of a rollout, as its `plan` describes it.

    Attributes:
      phase: its name in the plan.
      traced: by JAX, from shapes with shardings.
      live: arrays, as shapes, that are on the devices while it runs: its arguments and all others.
      turns: iterations of the loop in it that has no fixed number of them.
      read: bytes that each device reads at least; None if it reads every argument once.
    """

    phase: str
    traced: Any
    live: Any
    turns: int = 1
    read: float | None = None


@runtime_checkable
class Planned(Protocol):
    """A rollout that `rl4p.plan` can plan; the plan of any other says that it leaves it out."""

    def plan(self, run: Any) -> Generator[PlannedProgram, Any, None]:
        """Yields the programs of a call, in their order, on the devices that sample.

        Each ``yield`` returns the results of that program as shapes with shardings, or None if the
        compiler found that it cannot fit.

        Args:
          run: a `planning.abstract.AbstractRun`: the policy, and shapes at their largest.
        """
        ...

    def slots_of(self, sequences: int) -> int | None:
        """Returns how many of a step's sequences are decoded at a time, by the option `slots`.

        None: there is no such option, and the plan neither searches for it nor advises it.
        """
        ...


@runtime_checkable
class Remembers(Protocol):
    """A phase with memory."""

    def initial_state(self) -> Any:
        """Returns the memory before the first step: a tree of arrays."""
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
    """Grades to one number per token. Pure JAX: the loop compiles it.

    Two options are applied around the call where a phase has them
    (`learner/advantage_options.py`): `clip` and `mask_truncated`. One that teaches a critic has a
    method ``returns`` too (`TeachesCritic`).
    """

    def __call__(self, trajectories: Trajectories, rewards: Rewards) -> Array:
        """Returns float32 [B, T], 0 outside the response mask and on invalid samples."""
        ...


@runtime_checkable
class TeachesCritic(Protocol):
    """An advantage that a critic learns from."""

    def returns(self, trajectories: Trajectories, rewards: Rewards, scores: Any) -> Array:
        """Returns the critic's targets: float32 [B, T]."""
        ...


class Update(Protocol):
    """A policy loss. Pure JAX: `learner/gradient_step.py` differentiates, sums and applies it.

    The fields of `learner/update_options.py` come with it: derive from `UpdateOptions`. With
    ``whole_groups = True`` the rows of a group are never divided, for a loss that couples them. One
    that must see all rows of a minibatch has a method ``prepare`` too (`Prepares`).
    """

    aggregation: Any
    aggregation_length: int | None
    epochs: int
    minibatches: int

    tokens_per_microbatch: int
    microbatch_widths: int

    @property
    def microbatching(self) -> Microbatching:
        """How rows are divided, by the two fields above."""
        ...

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


@runtime_checkable
class Prepares(Protocol):
    """An update that chooses or normalises over all rows of a minibatch."""

    def prepare(self, batch: TrainingBatch) -> dict[str, Array]:
        """Returns arrays [B, T] by name, which stand in ``batch.scores`` of each microbatch.

        Args:
          batch: the whole minibatch, before it is split.
        """
        ...


class Correction(Protocol):
    """Weights of the policy loss for samples of a policy that is not quite the one trained.

    The engine that samples computes its own log-probabilities: other kernels, other precision,
    older weights.
    """

    def __call__(self, log_ratio_BT: Array, mask_BT: Array) -> Array:
        """float32 [B, T], 0 outside the loss mask, without a gradient.

        Args:
          log_ratio_BT: log pi_proximal - log pi_behaviour; read on the mask only.
        """
        ...


class KL(Protocol):
    """A penalty on the divergence from the reference, added to the loss or taken from the reward.

    One with memory has ``initial_state()``, and ``next_state(memory, measured)``, which is given
    the mean penalty of a step's loss tokens after it.

    Attributes:
      active: if false, no reference exists and none is scored.
    """

    @property
    def active(self) -> bool: ...

    @property
    def placement(self) -> str: ...

    def coefficient(self, memory: dict[str, Array]) -> Array:
        """Of this step; `memory` is {} for one without."""
        ...

    def penalty(self, logprobs_BT: Array, reference_BT: Array, behaviour_BT: Array) -> Array:
        """The estimate of each token, float32 [B, T]; its arguments are 0 outside the mask."""
        ...


class Entropy(Protocol):
    """A bonus for entropy, or a choice of tokens by it.

    One with memory has ``initial_state()``, and ``next_state(memory, measured)``, which is given
    the mean entropy of a step's loss tokens after it.

    Attributes:
      active: if false, no bonus is subtracted from the loss.
      selects: if false, every token keeps its gradient.
    """

    @property
    def active(self) -> bool: ...

    @property
    def selects(self) -> bool: ...

    def coefficient(self, memory: dict[str, Array]) -> Array:
        """Of this step; `memory` is {} for one without."""
        ...

    def select(self, entropy_BT: Array, mask_BT: Array) -> Array:
        """The tokens of the whole minibatch that keep their policy gradient: bool [B, T]."""
        ...


class Critic(Protocol):
    """Values of states, and the loss that teaches them; one that is active is an `Estimator` too.

    Attributes:
      own_trunk: whether `values` runs the tokens itself, and so must be given whole sequences.
    """

    @property
    def active(self) -> bool: ...

    @property
    def own_trunk(self) -> bool: ...


@runtime_checkable
class Estimator(Protocol):
    """What an active critic has."""

    def init(self, decoder: Decoder, policy_params: Params) -> Params:
        """Returns what stands at `critic` among the trained parameters."""
        ...

    def values(
        self, decoder: Decoder, params: Params, hidden_BTD: Array, trajectories: Trajectories
    ) -> Array:
        """Returns float32 [B, T], at t the value of the state that token t is chosen in."""
        ...

    def loss(self, values_BT: Array, old_values_BT: Array, returns_BT: Array) -> Array:
        """Returns the loss of each value: float32 [B, T]."""
        ...


class Score(Protocol):
    """A score of the user's own: `scores.NAME` computes it, and phases name it in ``needs``."""

    def __call__(
        self,
        policy: Policy,
        state: TrainState,
        trajectories: Trajectories,
        texts: Texts,
        rewards: Rewards,
    ) -> Array:
        """Returns float32 [B, T], once a step, before the advantage.

        Args:
          state: of the start of the step; a score does not change it.
        """
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
