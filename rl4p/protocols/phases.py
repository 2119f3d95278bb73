"""The protocols of the phases: their arguments and their results.

A phase is a frozen dataclass with one pure ``__call__``; its fields are its options. Write one in a
package of your own and name it in YAML or on the command line (docs/parts.md). The
protocols are structural, so nothing has to be registered; only an update inherits its options.

A phase may have two more members:

* ``needs``: a frozenset of the names of scores, which the loop computes before the advantage. The
  loop computes only requested scores; an empty set costs no extra forward pass. An advantage or a
  correction then takes its scores in one more argument, ``scores``. An update reads them from
  ``batch.scores``. A KL penalty may request `reference_logprobs`, and an entropy phase `entropy`.
  Building the run fails if a phase requests a score that it would not receive. The names:

      proximal_logprobs, entropy, collision   [B, T], under the policy at the start of the step
      reference_logprobs                      [B, T], under the initial policy of the run
                                              (with LoRA, the base model)
      teacher_logprobs                        [B, T], under the model in `teacher`
      values                                  [B, T], of the critic; position t holds the value of
                                              the state before token t
      greedy_rewards                          [B], of one greedy response to the row's prompt
      answer_clusters                         [B], equal where two samples end in the same answer
      turn_states                             [B, T], on the tokens of each turn a number of the
                                              state before it, equal for equal states of a group
      turn_roles                              [B, T], on the tokens of each turn the index of its
                                              role among the roles of the environment or agent
      task_ids                                [B], the index of the row's task in the training data
      right                                   [B], whether evaluation.term gave at least 1
      margins                                 [B], the field `margin` of the row
      mismatched_log_ratios                   [B, T], log pi - log pi_reference of the response to
                                              another prompt, at the start of the step

  ``scores.NAME`` in the configuration adds a score of your own (`UserScore`), [B, T].

* ``initial_state()``: returns the first memory of a phase with memory, such as a running baseline.
  A rollout, a reward, an advantage, a KL penalty or an entropy phase may have memory. The call of
  the first three then takes one more argument, ``memory``, and returns ``(result, memory)``. The
  loop keeps the memory in `TrainState.memory` and checkpoints it. The leaves are arrays.

`types.py` explains the shapes.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import optax

from rl4p.base.types import (
    Array,
    Episode,
    Microbatching,
    Params,
    Prompt,
    Rewards,
    Sampling,
    TrainingBatch,
    TrainState,
    Trajectories,
)
from rl4p.model.decoder import Decoder
from rl4p.model.policy import Policy


class Rollout(Protocol):
    """A phase that samples trajectories for prompts.

    Its optional members are `traits.RolloutTraits`, `Closes`, `Anneals`, `traits.Planned`,
    `traits.KeepsCaches`, `engine.OpensEngine` and `engine.Frees`.
    """

    sampling: Sampling  # the distribution of the tokens; the trainer scores them under it too
    max_response_tokens: int  # the maximum length of a response in tokens, the end token included

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
    ) -> tuple[Trajectories, Sequence[Episode]]:
        """Draws `group_size` responses to each of P prompts.

        Args:
          policy: the decoder, the tokenizer and the mesh.
          params: the trained parameters; `policy.for_sampling(params)` prepares them for
            `policy.decoder`.
          prompts: P prompts; P x group_size is a multiple of `mesh.row_shards`, and need not be one
            of `policy.sampling_mesh.row_shards`.
          group_size: G.
          key: a random key that nothing else uses.
          version: the weight version: the step of these parameters. It is written to
            `policy_version_BT`, where -1 means that no policy drew the token.
          greedy: whether to choose the most probable token at every step (for evaluation).

        Returns:
          B = P x G trajectories, and their episodes in the same order.
        """
        ...


@runtime_checkable
class Closes(Protocol):
    """A rollout or a reward that has opened something, such as processes or connections."""

    def close(self) -> None:
        """Ends what it has opened, at the end of a run."""
        ...


@runtime_checkable
class NamesIdleOptions(Protocol):
    """A phase with options that may have no effect beside others of its own."""

    def idle_options(self) -> list[str]:
        """Returns a sentence for each changed option that has none, to warn before the run."""
        ...


@runtime_checkable
class Anneals(Protocol):
    """A rollout whose temperature may change over the run."""

    def temperature_at(self, step: int) -> float | None:
        """Returns the temperature of a step; None if it is the same in all steps."""
        ...


@runtime_checkable
class Remembers(Protocol):
    """A phase with memory."""

    def initial_state(self) -> Any:
        """Returns the memory before the first step, a tree of arrays."""
        ...


@runtime_checkable
class Adapts(Remembers, Protocol):
    """A KL penalty or an entropy bonus whose coefficient changes after each step."""

    def next_state(self, memory: Any, measured: Array) -> Any:
        """Returns the memory after a step.

        Args:
          measured: the mean penalty or entropy over the step's loss tokens.
        """
        ...


class Reward(Protocol):
    """A phase that grades trajectories.

    `rl4p/protocols/reward.py` describes the terms of `reward=weighted`.

    Its optional members are `traits.RewardTraits` and `Closes`.
    """

    def __call__(self, trajectories: Trajectories, episodes: Sequence[Episode]) -> Rewards:
        """Grades every trajectory on the host.

        Raises:
          RunError: too many samples could not be graded.
        """
        ...


class Advantage(Protocol):
    """A phase that turns rewards into one number per token. It is pure JAX: the loop compiles it.

    The loop applies the options `clip` and `mask_truncated` around the call if the phase has them
    (`learner/advantage_options.py`). `traits.AdvantageTraits` has its optional members. One that
    trains a critic also has a method ``returns`` (`TeachesCritic`).
    """

    def __call__(self, trajectories: Trajectories, rewards: Rewards) -> Array:
        """Returns float32 [B, T], 0 outside the response mask and on invalid samples."""
        ...


@runtime_checkable
class TeachesCritic(Protocol):
    """An advantage that provides the targets of a critic."""

    def returns(self, trajectories: Trajectories, rewards: Rewards, scores: Any) -> Array:
        """Returns the critic's targets: float32 [B, T]."""
        ...


class Update(Protocol):
    """A policy loss. It is pure JAX: `learner/gradient_step.py` differentiates and applies it.

    Derive from `UpdateOptions` (`learner/update_options.py`) to get the fields below.
    `traits.UpdateTraits` has its optional members. A loss that must see all rows of a minibatch
    also has a method ``prepare`` (`Prepares`), one that compares whole distributions with a
    teacher's a method ``divergence`` (`Distils`), and one that subtracts the score which the
    sampler expects a method ``expected_score`` (`Centers`).
    """

    aggregation: Any
    aggregation_length: int | None
    epochs: int
    minibatches: int

    tokens_per_microbatch: int
    microbatch_widths: int
    microbatching: Microbatching  # the division into microbatches, made from the two fields above

    def __call__(self, logprobs_BT: Array, batch: TrainingBatch) -> tuple[Array, dict[str, Array]]:
        """Returns the loss of each token, to be minimised.

        Args:
          logprobs_BT: float32, under the parameters being trained; 0 outside the loss mask.
          batch: a microbatch. ``batch.scores["proximal_logprobs"]`` is always present; if no phase
            requests it, it is `logprobs_BT` without its gradient.

        Returns:
          loss_BT float32, and metrics as arrays [B, T]: both are read on the loss mask only.
        """
        ...


@runtime_checkable
class Prepares(Protocol):
    """An update that selects or normalises over all rows of a minibatch."""

    def prepare(self, batch: TrainingBatch) -> dict[str, Array]:
        """Returns arrays [B, T] by name, which are added to ``batch.scores`` of each microbatch.

        Args:
          batch: the whole minibatch, before it is split.
        """
        ...


@runtime_checkable
class Distils(Protocol):
    """An update that compares the policy with the model in `teacher`.

    ``batch.scores["divergence"]`` then has the divergence of each token of a microbatch: [B, T],
    with its gradient. Each microbatch runs the teacher, and few columns have logits at a time.
    """

    def divergence(self, logprobs_V: Array, teacher_V: Array) -> Array:
        """Returns the divergence of two distributions: float32 [...].

        Args:
          logprobs_V, teacher_V: float32 [..., V], log-probabilities of policy and teacher over the
            vocabulary at the temperature of the rollout.
        """
        ...


@runtime_checkable
class Centers(Protocol):
    """An update whose loss is -A log pi, from whose gradient the expected one is subtracted.

    The rollout records the sampler's most probable tokens (`RolloutTraits.alternatives`). To the
    loss of each token is added A times the expected score, outside the weight of its own ratio.
    """

    def expected_score(
        self, logprobs_A: Array, behaviour_A: Array, weigh: Callable[[Array], Array]
    ) -> Array:
        """Returns a number whose gradient is the expected, weighted score: float32 [...].

        Args:
          logprobs_A, behaviour_A: float32 [..., A], the log-probabilities of the A tokens under
            the policy and the sampler; -inf outside a support.
          weigh: returns the weights of tokens by log pi - log pi_behaviour, of any shape.
        """
        ...


class Correction(Protocol):
    """Weights of the policy loss that correct for a difference between sampler and trainer.

    The log-probabilities of the sampling engine differ from the trainer's because of other
    kernels, another precision or staleness. `traits.CorrectionTraits` has its optional members: one
    with ``reads_batch`` takes two more arguments, `logprobs_BT` and `batch`, as an update does.
    """

    def __call__(self, log_ratio_BT: Array, mask_BT: Array) -> Array:
        """Returns weights, float32 [B, T], 0 outside the loss mask, without a gradient.

        Args:
          log_ratio_BT: log pi_proximal - log pi_behaviour; read on the mask only.
        """
        ...


class KL(Protocol):
    """A penalty on the divergence from the reference: added to the loss or subtracted from rewards.

    A penalty with memory is `Adapts`: `measured` is the mean penalty over the step's loss tokens.

    Attributes:
      active: if false, there is no penalty, and it needs no reference policy.
    """

    active: bool
    placement: str

    def coefficient(self, memory: dict[str, Array]) -> Array:
        """Returns the weight of the penalty in this step; `memory` is {} without a memory."""
        ...

    def penalty(self, logprobs_BT: Array, reference_BT: Array, behaviour_BT: Array) -> Array:
        """Returns the estimate per token, float32 [B, T]; the arguments are 0 outside the mask."""
        ...


class Entropy(Protocol):
    """An entropy bonus, or a selection of tokens by their entropy.

    A phase with memory is `Adapts`: `measured` is the mean entropy over the step's loss tokens.

    Attributes:
      active: if false, no bonus is subtracted from the loss.
      selects: if false, every token keeps its gradient.
    """

    active: bool
    selects: bool

    def coefficient(self, memory: dict[str, Array]) -> Array:
        """Returns the weight of the bonus in this step; `memory` is {} without a memory."""
        ...

    def select(self, entropy_BT: Array, mask_BT: Array) -> Array:
        """Returns the tokens of a minibatch that keep their policy gradient: bool [B, T]."""
        ...


class Critic(Protocol):
    """A model of state values and its loss. An active critic is also an `Estimator`.

    Attributes:
      own_trunk: whether `values` runs its own forward pass, which needs complete sequences.
    """

    active: bool
    own_trunk: bool


@runtime_checkable
class Estimator(Protocol):
    """The methods of an active critic."""

    def init(self, decoder: Decoder, policy_params: Params) -> Params:
        """Returns the critic's parameters, which are stored under `critic` in the trained tree."""
        ...

    def values(
        self, decoder: Decoder, params: Params, hidden_BTD: Array, trajectories: Trajectories
    ) -> Array:
        """Returns float32 [B, T]; position t holds the value of the state before token t.

        Under `mesh.cp`, activations are those of this device's columns, and the result is that of
        all: `predicting` and `shift_to_targets` of `distributed/collectives.py` serve both cases
        (`model/heads.py`).
        """
        ...

    def loss(self, values_BT: Array, old_values_BT: Array, returns_BT: Array) -> Array:
        """Returns the loss of each value: float32 [B, T]."""
        ...


class UserScore(Protocol):
    """A user-defined score: `scores.NAME` configures it, and phases list it in ``needs``."""

    def __call__(
        self,
        policy: Policy,
        state: TrainState,
        trajectories: Trajectories,
        episodes: Sequence[Episode],
        rewards: Rewards,
    ) -> Array:
        """Returns float32 [B, T]; called once per step, before the advantage.

        Args:
          state: the state at the start of the step; a score does not change it.
        """
        ...


class Optimizer(Protocol):
    """A direction and a learning rate. They are separate so that the rate can be a metric."""

    def transform(self) -> optax.GradientTransformation:
        """Returns the optax transformation at learning rate 1."""
        ...

    def learning_rate_at(self, step: Array | int) -> Array: ...
