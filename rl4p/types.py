"""What flows between the phases.

    prompts --rollout--> Trajectories, Texts --reward--> Rewards
            --advantage--> advantages_BT --update--> TrainState

Dimension letters, used as suffixes of array names everywhere: P prompts, G samples of a prompt,
B = P x G sequences, T tokens, V vocabulary, L layers, D width, H query heads, K key/value heads,
h head width, S cache slots.

Arrays and texts are two objects tied row by row: texts never enter a jitted function, and arrays
never wait for texts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import jax
import numpy as np

Array = jax.Array | np.ndarray  # on the devices or on the host
Params = Any  # a nested dict of arrays
Metrics = dict[str, Array]


class Finish(IntEnum):
    """Why a response ended."""

    STOP = 0  # the policy chose an end token
    LENGTH = 1  # the token limit cut it
    ABORT = 2  # the engine gave up


@dataclass(frozen=True, kw_only=True)
class Question:
    """One row of a data set.

    Attributes:
      id: stable across runs and machines.
      question: what the user asks.
      answer: the reference answer that graders compare with.
      task: names the metrics (``eval/<task>/pass_at_1``).
      solution: a worked answer, where the data set has one; demonstrations are made of it.
      metadata: anything else a grader may want.
    """

    id: str
    question: str
    answer: str
    task: str
    solution: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Prompt(Question):
    """A question in its chat template, as token ids.

    Attributes:
      system_prompt: what stands before the question, for graders with a template of their own.
    """

    tokens: tuple[int, ...]
    system_prompt: str | None = None


@dataclass(frozen=True, kw_only=True)
class Texts:
    """The host side of a batch of trajectories: row b belongs to row b of the arrays."""

    prompts: tuple[Prompt, ...]  # B: each prompt stands once per sample
    responses: Sequence[str]  # B, special tokens left out


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The distribution that tokens are drawn from: logits / temperature, cut to top-k, then top-p.

    Behaviour and trained log-probabilities both refer to this distribution. Temperature 0 is the
    argmax, whose log-probability is reported at temperature 1. top_k 0 and top_p 1 are off.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Microbatching:
    """How the rows of a batch are divided into microbatches. It never changes a gradient.

    Attributes:
      tokens: of one microbatch at most, padding included; a microbatch has one row at least.
      widths: how many loops are compiled at most for rows of different lengths; 1 pads all alike.
    """

    tokens: int
    widths: int = 8


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Trajectories:
    """Sampled sequences, token in, token out: what was sampled is what is trained.

    Attributes:
      tokens_BT: int32 token ids, prompt and response.
      response_mask_BT: bool, true exactly on tokens that the policy chose, the end token included.
      positions_BT: int32 position of each token in its sequence, from 0.
      segment_ids_BT: int32, 0 on padding; tokens attend to tokens of the same id only.
      behaviour_logprobs_BT: float32 log p(token t | tokens before t) under the policy and the
        support that it was sampled with; 0 where the mask is false.
      group_ids_B: int32 in [0, B), equal for the samples of one prompt, in any order.
      policy_version_B: int32, the step whose parameters sampled the row; -1 where no policy did.
      finish_B: int8, a `Finish`.
      group_size: how many rows every group has, if it is known to be the same for all; 1 if not.
      prompt_columns: in the first so many columns rows of a group are alike: their prompt, padded
        left, without any token that the policy chose; 0 if that is not known.
    """

    tokens_BT: Array
    response_mask_BT: Array
    positions_BT: Array
    segment_ids_BT: Array
    behaviour_logprobs_BT: Array
    group_ids_B: Array
    policy_version_B: Array
    finish_B: Array
    group_size: int = field(default=1, metadata={"static": True})
    prompt_columns: int = field(default=0, metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Rewards:
    """Grades of trajectories.

    Attributes:
      total_B: float32, what the advantage sees; 0 where invalid.
      terms: each term unweighted, float32 [B].
      valid_B: bool; a grader that failed makes a sample invalid, not worth zero: it leaves the
        baseline and the loss.
      tokens_BT: float32, rewards given at single tokens (a KL penalty), 0 outside the response
        mask, whose sum is in `total_B`; None where there are none.
    """

    total_B: Array
    terms: dict[str, Array]
    valid_B: Array
    tokens_BT: Array | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class TrainingBatch:
    """What an update sees.

    Attributes:
      trajectories: the sampled sequences.
      advantages_BT: float32, 0 outside the loss mask.
      loss_mask_BT: bool, the response mask without invalid samples.
      scores: what phases asked for in ``needs``, by name: float32 [B, T].
    """

    trajectories: Trajectories
    advantages_BT: Array
    loss_mask_BT: Array
    scores: dict[str, Array]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class TrainState:
    """Everything that a step changes, one immutable pytree, checkpointed whole.

    Attributes:
      step: int32, steps finished.
      params: what is trained: the policy (or its adapters), and at `critic` a critic.
      optimizer_state: of optax.
      key: the run's random key. A step uses ``fold_in(key, step)`` and never spends a key twice.
      memory: by phase name, the state of phases that have one (``initial_state``).
      average: a moving average of the parameters; {} where none is kept.
    """

    step: Array
    params: Params
    optimizer_state: Any
    key: Array
    memory: dict[str, Any]
    average: Params = field(default_factory=dict)

    def step_key(self) -> Array:
        """This step's key; rollouts fold in 0 and updates 1, so that nothing is drawn twice."""
        return jax.random.fold_in(self.key, self.step)


@dataclass(frozen=True, kw_only=True)
class StepInfo:
    """One finished step of the loop: what hooks see."""

    step: int
    state: TrainState
    trajectories: Trajectories
    texts: Texts
    rewards: Rewards
    metrics: dict[str, float]
