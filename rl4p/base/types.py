"""The data types that pass between the phases.

    prompts --rollout--> Trajectories, Episodes --reward--> Rewards
            --advantage--> advantages_BT --update--> TrainState

Dimension letters, used as suffixes of array names everywhere: P prompts, G samples of a prompt,
B = P x G sequences, T tokens, V vocabulary, L layers, D width, H query heads, K key/value heads,
h head width, S cache slots.

Arrays and episodes are two objects with corresponding rows: episodes never enter a jitted function,
and work on arrays never waits for texts. Both have `to_dict` and `from_dict` (`serialization.py`).
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from rl4p.base.errors import InputError, RunError
from rl4p.base.serialization import Serializable, serializable_enum

Array = jax.Array | np.ndarray  # on the devices or on the host
Params = Any  # a nested dict of arrays
Metrics = dict[str, Array]


@serializable_enum
class Finish(IntEnum):
    """The reason why a response ended."""

    STOP = 0  # the policy chose an end token
    LENGTH = 1  # the response reached the token limit
    ABORT = 2  # the engine aborted the response


@dataclass(frozen=True, kw_only=True)
class Question(Serializable):
    """One row of a data set.

    Attributes:
      id: an identifier that is stable across runs and machines.
      question: the text of the user's message.
      answer: the reference answer that graders compare with.
      task: the task name, used in the names of metrics (``eval/<task>/pass_at_1``).
      solution: a worked answer, if the data set has one; demonstrations use it.
      messages: the conversation, if it is more than a message of the user, as chat templates take
        it. `question` is then the last user message. Assistant messages at its end are an answer.
      tools: the tools that the conversation may call, as JSON schemas of functions; or None.
      system_prompt: a text before this question in place of the data set's, or None.
      metadata: any other values that a grader may need.
      pair: a preferred and a rejected response (`data/pairs.py`); None for no preference pair.
    """

    id: str
    question: str
    answer: str
    task: str
    solution: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    tools: tuple[Mapping[str, Any], ...] | None = None
    system_prompt: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    pair: tuple[str | Mapping[str, Any], ...] | None = None

    def prompt_messages(self, system_prompt: str | None = None) -> list[dict[str, Any]]:
        """Returns the messages before the response, as a chat template takes them.

        They begin with the first of: a system message in `messages`, the question's own
        `system_prompt`, and the argument, which the data set has.
        """
        if self.messages is None:
            asked: list[dict[str, Any]] = [{"role": "user", "content": self.question}]
        else:
            asked = [dict(message) for message in self.messages]
            while asked and asked[-1]["role"] == "assistant":
                asked.pop()
        system = system_prompt if self.system_prompt is None else self.system_prompt
        if not system or (asked and asked[0]["role"] == "system"):
            return asked
        return [{"role": "system", "content": system}, *asked]


@dataclass(frozen=True, kw_only=True)
class Demonstration(Serializable):
    """A worked answer to a prompt, as token ids; the answers in the prompt are trained with it.

    Attributes:
      tokens: int32 ids of the last message, from its first trained token to its end token.
      trained: ranges of tokens in prompt and answer: the assistant's messages with end tokens.
    """

    tokens: Sequence[int]
    trained: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class Prompt(Question):
    """A question in its chat template, as token ids; `system_prompt` is the one in the tokens.

    Attributes:
      generation_prompt: the end of the prompt, which the chat template wrote for the assistant, as
        ``<|assistant|><think>``; None if not known.
      demonstration: a conversation's worked answer, for `rollout=demonstrations`.
      responses: int32 ids of the responses of a `pair`, for `rollout=preferences`.
      drawn_by: the source that drew the prompt on purpose, as `replay`; None if its turn came.
    """

    tokens: tuple[int, ...]
    generation_prompt: str | None = None
    demonstration: Demonstration | None = None
    responses: tuple[Sequence[int], ...] = ()
    drawn_by: str | None = None


@dataclass(frozen=True, kw_only=True)
class Turn(Serializable):
    """A message of the policy, and what an environment answered to it.

    Attributes:
      text, tokens: the text of the message, special tokens included, and the number of its tokens.
      messages: the answer, as chat templates take it; empty at the end of an episode.
      reward, metrics, state: as in `protocols.environment.StepResult`.
      start: the number of the policy's tokens before its first one in the row, where calls of two
        conversations alternate; None if it follows the turn before in the row.
      role: the name of the agent that said it, where an episode has several; or "".
      files: at the end of an episode, the sizes of the files that it has changed, if known.
      sampling_seconds, environment_seconds: the times of both, which equality leaves out; or 0.
    """

    text: str
    tokens: int
    messages: tuple[Mapping[str, Any], ...] = ()
    reward: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    state: Hashable = None
    start: int | None = None
    role: str = ""
    files: Mapping[str, int] = field(default_factory=dict)
    sampling_seconds: float = field(default=0.0, compare=False)
    environment_seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True, kw_only=True)
class Episode(Serializable):
    """A row of trajectories in words, on the host; episode b belongs to row b of the arrays.

    Attributes:
      prompt: the prompt, the same object for all samples of a group.
      response: the text of the response, without special tokens; of the last one of many turns.
      tokens, finish: the number of tokens that the policy chose, with end tokens, and the reason
        why the response ended; None if not known.
      engine: the address of the server that sampled the response; "" for this process.
      turns: those of `rollout=environment` or `agent`; empty for a single response.
      failure: what the environment did wrong, which makes the sample invalid; or None.
      opening: the messages before the first response, if an environment changed them.
      segments: how many contexts the policy read from their beginning; 0 if not known.
    """

    prompt: Prompt
    response: str
    tokens: int | None = None
    finish: Finish | None = None
    engine: str = ""
    turns: tuple[Turn, ...] = ()
    failure: str | None = None
    opening: tuple[Mapping[str, Any], ...] | None = None
    segments: int = 0

    @property
    def turn_places(self) -> list[slice]:
        """Returns where each turn is among the tokens of the row that the policy chose.

        Turns are in the order of time, and the row has one segment after the other.
        """
        places, end = [], 0
        for turn in self.turns:
            start = end if turn.start is None else turn.start
            end = start + turn.tokens
            places.append(slice(start, end))
        return places

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Returns the conversation as a chat template takes it."""
        messages = [dict(message) for message in self.opening or ()]
        if self.opening is None:
            messages = self.prompt.prompt_messages()
        for turn in self.turns or (Turn(text=self.response, tokens=0),):
            messages += [{"role": "assistant", "content": turn.text}, *map(dict, turn.messages)]
        return messages


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The sampling distribution: logits / temperature, truncated to top-k, top-p, then min-p.

    Behaviour and trained log-probabilities refer to it. Temperature 0 takes the argmax and reports
    its log-probability at temperature 1. top_k = 0, top_p = 1 and min_p = 0 disable the truncation.
    Only samplers heed the three options after them, which depend on the tokens before. With
    replay_support, samplers record the tokens that the truncation keeps, and the log-probabilities
    of drawn tokens are normalised over these.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    least_tokens: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    replay_support: bool = False


@dataclass(frozen=True, kw_only=True)
class Microbatching:
    """The division of a batch into microbatches. It never changes a gradient.

    Attributes:
      tokens: the most tokens in one microbatch, padding included; it has at least one row.
      widths: the most loops compiled for rows of different lengths; 1 pads all rows to one length.
    """

    tokens: int
    widths: int = 8


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Trajectories(Serializable):
    """Sampled sequences as token ids. Training uses the sampled ids and never tokenizes text again.

    Attributes:
      tokens_BT: int32 token ids, prompt and response.
      response_mask_BT: bool, true exactly on tokens that the policy chose, the end token included.
      positions_BT: int32 position of each token in its sequence, from 0.
      segment_ids_BT: int32, 0 on padding; tokens attend to tokens of the same id only.
      behaviour_logprobs_BT: float32 log p(token t | tokens before t) under the sampling policy and
        its `Sampling` distribution; 0 where the mask is false.
      policy_version_BT: int32, the step of the parameters that drew each token, or -1.
      group_ids_B: int32 in [0, B), equal for the samples of one prompt, in any order.
      finish_B: int8, a `Finish`.
      experts_BTX: the experts that the sampler chose for each token (`Router.choose`): 1 + their
        numbers in each layer with experts, or 0 where the trainer chooses; None if not recorded.
      alternatives_BTA: int32, the A most probable tokens at the place of each token under the
        sampling policy and its `Sampling`, the most probable first; None if not recorded.
      alternative_logprobs_BTA: float32, their log-probabilities; -inf outside the support. Both are
        arbitrary on tokens that no policy drew.
      group_size: the number of rows of every group, if it is known to be the same; otherwise 1.
      prompt_columns: the number of leading columns that hold only prompts, padded left, which are
        equal in the rows of a group; 0 if not known.
    """

    tokens_BT: Array
    response_mask_BT: Array
    positions_BT: Array
    segment_ids_BT: Array
    behaviour_logprobs_BT: Array
    policy_version_BT: Array
    group_ids_B: Array
    finish_B: Array
    experts_BTX: Array | None = None
    alternatives_BTA: Array | None = None
    alternative_logprobs_BTA: Array | None = None
    group_size: int = field(default=1, metadata={"static": True})
    prompt_columns: int = field(default=0, metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Rewards(Serializable):
    """Grades of trajectories.

    Attributes:
      total_B: float32, the reward that the advantage reads; 0 on invalid samples.
      terms: the unweighted terms by name, float32 [B], to be read where `graded` is true: nan where
        a term does not apply, 0 on invalid samples.
      valid_B: bool, false if a grader failed or no term applies. An invalid sample is left out of
        the baseline and the loss.
      tokens_BT: float32, the rewards of single tokens (of turns, and a KL penalty), 0 outside the
        response mask; `total_B` includes their sum. None if there are none.
      late_B: bool, the samples that are invalid because a term passed its deadline; or None.
      dropped_B: bool, the samples that a collector or a transform made invalid; or None.
    """

    total_B: Array
    terms: dict[str, Array]
    valid_B: Array
    tokens_BT: Array | None = None
    late_B: Array | None = None
    dropped_B: Array | None = None

    def graded(self, name: str) -> Array:
        """Returns the valid samples to which the term applies: bool [B]."""
        term_B = self.terms[name]
        isnan = np.isnan if isinstance(term_B, np.ndarray) else jnp.isnan
        return self.valid_B & ~isnan(term_B)


@dataclass(frozen=True, kw_only=True)
class Group(Serializable):
    """The samples of one prompt with their grades, on the host.

    Attributes:
      trajectories: G rows.
      episodes, rewards: the same samples in words, and their grades.
    """

    trajectories: Trajectories
    episodes: Sequence[Episode]
    rewards: Rewards

    @property
    def prompt(self) -> Prompt:
        return self.episodes[0].prompt

    @property
    def valid_rewards(self) -> np.ndarray:
        """The total rewards of the valid samples."""
        return np.asarray(self.rewards.total_B)[np.asarray(self.rewards.valid_B)]

    def without(self, rows_B: np.ndarray) -> "Group":
        """Returns the group with some samples (bool) dropped from the baseline and the loss.

        The samples keep their places, so that the shapes of a batch stay the same.
        """
        rewards = self.rewards

        def kept(values_B: Array) -> np.ndarray:
            rows = rows_B if np.ndim(values_B) == 1 else rows_B[:, None]
            return np.where(rows, np.zeros_like(values_B), values_B)

        before_B = rows_B & False if rewards.dropped_B is None else np.asarray(rewards.dropped_B)
        changed = replace(
            rewards,
            total_B=kept(rewards.total_B),
            terms={name: kept(term_B) for name, term_B in rewards.terms.items()},
            valid_B=kept(rewards.valid_B),
            tokens_BT=None if rewards.tokens_BT is None else kept(rewards.tokens_BT),
            late_B=None if rewards.late_B is None else kept(rewards.late_B),
            dropped_B=rows_B | before_B,
        )
        return replace(self, rewards=changed)

    def right(self, term: str | None) -> np.ndarray:
        """Returns which samples have at least 1 in a term, or in the total reward: bool [G]."""
        if term is not None and term not in self.rewards.terms:
            raise InputError(
                f"term={term} is not a term of the reward, which has "
                f"{', '.join(sorted(self.rewards.terms))}: name one of them, or null."
            )
        if term is None:
            return np.asarray(self.rewards.valid_B & (self.rewards.total_B >= 1))
        return np.asarray(self.rewards.graded(term) & (self.rewards.terms[term] >= 1))


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class TrainingBatch(Serializable):
    """The input of an update.

    Attributes:
      trajectories: the sampled sequences.
      advantages_BT: float32, 0 outside the loss mask.
      loss_mask_BT: bool, the response mask without invalid samples.
      scores: the scores that phases list in ``needs``, by name: float32 [B, T].
    """

    trajectories: Trajectories
    advantages_BT: Array
    loss_mask_BT: Array
    scores: dict[str, Array]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class TrainState:
    """The state of training as one immutable pytree. A checkpoint holds all of it.

    Attributes:
      step: int32, the number of finished steps; it is the weight version of the parameters.
      params: the trained parameters: the policy or its adapters, and the critic under `critic`.
      optimizer_state: the state of the optax transformation.
      key: the run's random key. A step uses ``fold_in(key, step)``, and no key is used twice.
      memory: the state of each phase that has one (``initial_state``), by phase name.
      average: a moving average of the parameters; {} if none is kept.
      reference: the parameters of the reference policy if it is reset; {} if it never is.
    """

    step: Array
    params: Params
    optimizer_state: Any
    key: Array
    memory: dict[str, Any]
    average: Params = field(default_factory=dict)
    reference: Params = field(default_factory=dict)

    def step_key(self) -> Array:
        """Returns the key of this step. A rollout folds in 0 and an update 1, so no key repeats."""
        return jax.random.fold_in(self.key, self.step)

    def check_not_donated(self) -> None:
        """Refuses a state whose buffers were donated to an update."""
        arrays = (x for x in jax.tree.leaves(self) if isinstance(x, jax.Array))
        if any(x.is_deleted() for x in arrays if not isinstance(x, Tracer)):
            raise RunError(
                "The buffers of this state were donated to an update: use the state that the "
                "update returned or, if the update failed, restore a checkpoint."
            )
