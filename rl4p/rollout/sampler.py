"""The options, the engine and the rollout that all in-process samplers share.

Also the trajectories and episodes of answered prompts, and rows of trajectories as traces.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import TypeAdapter, ValidationError

from rl4p.base.types import Array, Episode, Finish, Params, Prompt, Sampling, Trajectories
from rl4p.configuration.bounds import (
    AboveZero,
    Finite,
    Natural,
    NonNegative,
    Positive,
    Share,
    TopShare,
)
from rl4p.configuration.suggestions import did_you_mean
from rl4p.data.extraction import response_texts
from rl4p.distributed.processes import to_host
from rl4p.engine.in_process import InProcess, RowOptions
from rl4p.model.policy import Policy, pad_left
from rl4p.protocols.engine import Completion, Request, finish
from rl4p.protocols.traits import RolloutTraits
from rl4p.rollout.annealing import Linear

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# The options that a task may have of its own, with their types.
OF_TASKS: dict[str, Any] = {
    "temperature": NonNegative,
    "top_k": Natural,
    "top_p": TopShare,
    "min_p": Share,
    "least_tokens": Natural,
    "repetition_penalty": AboveZero,
    "presence_penalty": Finite,
    "stop": tuple[str, ...],
}


@dataclass(frozen=True, kw_only=True)
class Sampler(ABC):
    """A rollout that answers each prompt `group_size` times with the engine that `open` returns.

    Attributes:
      max_response_tokens: the longest response in tokens, the end token included.
      temperature, top_k, top_p, min_p: the sampling distribution (`types.Sampling`). min_p drops
        the tokens with less than this share of the largest probability.
      stop: strings that end a response. The token that completes one is its last token, and the
        text has the string.
      least_tokens: no end token is drawn before a response has so many tokens.
      repetition_penalty: divides a logit above 0, and multiplies another, by this number, if its
        token occurs in the prompt or the response. 1 is off.
      presence_penalty: is subtracted from the logit of each token of the response. 0 is off.
      tasks: other values of these options by task, such as ``{code: {stop: ["```"]}}``.
      annealing: the change of the temperature over the steps of a run; None for none. Evaluations
        keep `temperature`.
      sync_every: n, the steps between two changes of the weights that sample. With n > 1, steps in
        between sample with the weights of the last change, and their tokens are up to n - 1 steps
        old. Evaluations always have the newest weights.
      max_logprob_gap: the run ends if `rollout/logprob_gap_mean` of a step is larger; None never
        ends it.
    """

    max_response_tokens: Positive
    temperature: NonNegative = 1.0
    annealing: Linear | None = None
    top_k: Natural = 0
    top_p: TopShare = 1.0
    min_p: Share = 0.0
    stop: tuple[str, ...] = ()
    least_tokens: Natural = 0
    repetition_penalty: AboveZero = 1.0
    presence_penalty: Finite = 0.0
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    sync_every: Positive = 1
    max_logprob_gap: AboveZero | None = None

    def __post_init__(self) -> None:
        if self.annealing is not None and self.temperature == 0:
            raise ValueError("annealing needs a temperature above 0 to begin with.")
        if "" in self.stop:
            raise ValueError("stop has an empty string, which would end every response.")
        for task in ("", *self.tasks):
            own = self.options(task)
            if own.stop and own.sampling.least_tokens:
                raise ValueError("stop and least_tokens do not go together: leave one of them out.")
            if own.sampling.least_tokens >= self.max_response_tokens:
                raise ValueError(
                    f"least_tokens={own.sampling.least_tokens} leaves no room for an end token: "
                    f"set fewer than max_response_tokens={self.max_response_tokens}."
                )

    @property
    def sampling(self) -> Sampling:
        return self.options("").sampling

    def options(self, task: str) -> RowOptions:
        """Returns the sampling options of a task.

        Raises:
          ValueError: `tasks` has an option that is not one of them, or a wrong value.
        """
        values = {name: getattr(self, name) for name in OF_TASKS}
        for name, value in self.tasks.get(task, {}).items():
            key = f"tasks.{task}.{name}"
            if name not in OF_TASKS:
                hint = did_you_mean(name, OF_TASKS)
                raise ValueError(f"{key} does not exist{hint} (options: {', '.join(OF_TASKS)})")
            try:
                TypeAdapter(OF_TASKS[name]).validate_python(value)
            except ValidationError as error:
                message = error.errors()[0]["msg"]
                raise ValueError(f"{key}={value} is wrong: {message}.") from None
            values[name] = value
        stop = values.pop("stop")
        return RowOptions(sampling=Sampling(**values), stop=tuple(stop))

    def untrained(self) -> list[str]:
        """Returns the options that change what tokens are drawn, and that the trainer ignores."""
        plain = Sampling()
        names = ("least_tokens", "repetition_penalty", "presence_penalty")
        changed = [name for name in names if getattr(self, name) != getattr(plain, name)]
        own = ((task, name) for task, options in self.tasks.items() for name in options)
        return changed + [f"tasks.{task}.{name}" for task, name in own if name != "stop"]

    def why_untrained(self) -> str | None:
        """Returns why nothing can be trained with these options, or None."""
        if not (options := self.untrained()):
            return None
        return (
            f"rollout.{options[0]} changes the distribution of tokens in a way that the trainer "
            "does not compute, so the log-probabilities would not agree: set it for the evaluation "
            f"(+rollout@evaluation.rollout=continuous evaluation.rollout.{options[0]}=...), or for "
            "rl4p.evaluate and rl4p.generate."
        )

    def temperature_at(self, step: int) -> float | None:
        """Returns the temperature of a step if it changes over the run, otherwise None."""
        return None if self.annealing is None else self.annealing(self.temperature, step)

    @abstractmethod
    def open(self, policy: Policy) -> InProcess:
        """Returns the engine; `publish` gives it its first weights."""

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
        engine, limit = self.open(policy), self.max_response_tokens
        engine.publish(params, version)
        keys_P = np.split(to_host(sequence_keys(key, len(prompts) * group_size)), len(prompts))
        requests = requests_of(prompts, keys_P, limit)
        completions = engine.complete(requests, greedy=greedy)
        engine.release()
        return answers(policy, prompts, completions, limit)


def requests_of(
    prompts: Sequence[Prompt], keys_PN: Sequence[np.ndarray] | np.ndarray, limit: int
) -> list[Request]:
    """Returns a request for each prompt, with the data of its random keys."""
    return [
        Request(
            tokens=prompt.tokens,
            keys_N=keys_N,
            max_tokens=limit,
            messages=prompt.prompt_messages(),
            task=prompt.task,
        )
        for prompt, keys_N in zip(prompts, keys_PN, strict=True)
    ]


def without_annealing(rollout: Any) -> Any:
    """Returns the rollout with its first temperature in all steps."""
    annealed = RolloutTraits.read(rollout).annealing is not None
    return replace(rollout, annealing=None) if annealed else rollout


@partial(jax.jit, static_argnames="B")
def sequence_keys(key: Array, B: int) -> Array:
    """Returns the data of B keys: the key of each sequence is folded from its number."""
    return jax.random.key_data(jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(B)))


# Folded into the key of the seed first, so that no key equals one of training (`build`).
PURPOSE = 0x67656E


def response_keys(
    seed: int, names: Sequence[str], samples: int, *, first: Sequence[int] | None = None
) -> np.ndarray:
    """Returns uint32 [P, samples, ...], the data of one random key for each response.

    The key of sample n of a prompt is the key of the seed, folded with 64 bits of a hash of the
    prompt's name and then with n. It depends neither on other prompts nor on the number of samples.

    Args:
      names: a name for each prompt, such as its id, which distinguishes the prompts.
      samples: the number of consecutive samples of each prompt.
      first: the number of the first of them, by prompt; None is 0 for all.
    """
    words_P2 = np.array([words(name) for name in names], np.uint32)
    first_P = np.zeros(len(names), np.int32) if first is None else np.array(first, np.int32)
    return to_host(folded(jax.random.key(seed), words_P2, first_P, samples))


def words(name: str) -> tuple[int, int]:
    """Returns two 32-bit numbers, which are a hash of the name."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:8], "big")


@partial(jax.jit, static_argnames="samples")
def folded(key: Array, words_P2: Array, first_P: Array, samples: int) -> Array:
    key = jax.random.fold_in(key, PURPOSE)

    def of_prompt(words_2: Array, first: Array) -> Array:
        own = jax.random.fold_in(jax.random.fold_in(key, words_2[0]), words_2[1])
        return jax.vmap(jax.random.fold_in, (None, 0))(own, first + jnp.arange(samples))

    return jax.random.key_data(jax.vmap(of_prompt)(words_P2, first_P))


def given_completion(tokens: Sequence[int], limit: int, end_ids: Sequence[int]) -> Completion:
    """Returns a completion of given tokens, which no policy drew, cut to `limit` tokens."""
    kept = np.array(tokens[:limit], np.int32)
    ended = finish(kept, end_ids) if len(tokens) > limit else Finish.STOP
    return Completion(
        tokens=kept,
        logprobs=np.zeros(kept.shape, np.float32),
        versions=np.full_like(kept, -1),
        finish=ended,
    )


def answers(
    policy: Policy,
    prompts: Sequence[Prompt],
    completions: Sequence[Completion],
    columns: int,
    chosen: Sequence[Sequence[tuple[int, int]]] | None = None,
) -> tuple[Trajectories, Sequence[Episode]]:
    """Joins P prompts, padded left, with G completions each, sharded over the mesh.

    The arguments are as in `answers_on_host`.
    """
    trajectories, episodes = answers_on_host(policy, prompts, completions, columns, chosen)
    episodes = episodes if jax.process_count() > 1 else tuple(episodes)
    return policy.mesh.shard_rows(trajectories), episodes


def answers_on_host(
    policy: Policy,
    prompts: Sequence[Prompt],
    completions: Sequence[Completion],
    columns: int,
    chosen: Sequence[Sequence[tuple[int, int]]] | None = None,
) -> tuple[Trajectories, "Decoded"]:
    """Joins P prompts, padded left, with G completions each.

    Args:
      completions: P x G completions, in the order of the prompts.
      columns: the number of columns of the responses, at least as many as the longest.
      chosen: for each prompt, the ranges of tokens in the sequence of prompt and completion that
        belong to the response mask; None for exactly the tokens of the completions.
    """
    B, group_size = len(completions), len(completions) // len(prompts)
    tokens_PT, mask_PT = pad_left([prompt.tokens for prompt in prompts], policy.pad_id)
    mask_BR = np.arange(columns) < np.array([[len(x.tokens)] for x in completions])

    def beside(prompt_PT: np.ndarray, response_BR: np.ndarray) -> np.ndarray:
        return np.concatenate([np.repeat(prompt_PT, group_size, axis=0), response_BR], axis=1)

    def of_responses(name: str, outside: float, prompt_PT: np.ndarray) -> np.ndarray:
        values = np.concatenate([getattr(x, name) for x in completions])
        response_BR = np.full(mask_BR.shape, outside, values.dtype)
        response_BR[mask_BR] = values
        return beside(prompt_PT, response_BR)

    segments_BT = beside(mask_PT, mask_BR).astype(np.int32)
    drawn_BT = response_mask_BT = beside(np.zeros_like(mask_PT), mask_BR)
    if chosen is not None:
        response_mask_BT = np.zeros_like(response_mask_BT)
        for rows_GT, prompt, ranges in zip(
            np.split(response_mask_BT, len(prompts)), prompts, chosen, strict=True
        ):
            first = tokens_PT.shape[1] - len(prompt.tokens)
            for start, end in ranges:
                rows_GT[:, first + start : first + end] = True
        response_mask_BT &= segments_BT > 0  # a response may be cut

    def recorded(name: str, mask_BT: np.ndarray) -> np.ndarray | None:
        rows = [getattr(x, name) for x in completions]
        if any(x is None for x in rows):
            return None
        values = np.concatenate(rows)
        values_BTX = np.zeros((*mask_BT.shape, values.shape[1]), values.dtype)
        values_BTX[mask_BT] = values
        return values_BTX

    trajectories = Trajectories(
        tokens_BT=of_responses("tokens", policy.pad_id, tokens_PT),
        response_mask_BT=response_mask_BT,
        positions_BT=np.maximum(np.cumsum(segments_BT, axis=1, dtype=np.int32) - 1, 0),
        segment_ids_BT=segments_BT,
        behaviour_logprobs_BT=of_responses("logprobs", 0, np.zeros(mask_PT.shape, np.float32)),
        policy_version_BT=of_responses("versions", -1, np.full_like(tokens_PT, -1)),
        group_ids_B=np.arange(B, dtype=np.int32) // group_size,
        finish_B=np.array([x.finish for x in completions], np.int8),
        experts_BTX=recorded("experts", segments_BT > 0),
        alternatives_BTA=recorded("alternatives", drawn_BT),
        alternative_logprobs_BTA=recorded("alternative_logprobs", drawn_BT),
        group_size=group_size,
        prompt_columns=tokens_PT.shape[1] if chosen is None else 0,
    )
    of_rows = [prompt for prompt in prompts for _ in range(group_size)]
    tokens = [x.tokens.tolist() for x in completions]
    finishes, engines = [x.finish for x in completions], [x.engine for x in completions]
    return trajectories, Decoded(policy.tokenizer, of_rows, tokens, finishes, engines)


@dataclass(frozen=True)
class Decoded(Sequence[Episode]):
    """A lazy sequence of episodes, since each of several processes decodes only some."""

    tokenizer: "PreTrainedTokenizerFast"
    prompts: list[Prompt]
    tokens: list[list[int]]
    finishes: list[Finish]
    engines: list[str]

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            prompts, tokens, finishes = self.prompts[at], self.tokens[at], self.finishes[at]
            return Decoded(self.tokenizer, prompts, tokens, finishes, self.engines[at])
        return self.episode(at, response_texts(self.tokenizer, [self.tokens[at]])[0])

    def __iter__(self) -> Iterator[Episode]:
        for at, response in enumerate(response_texts(self.tokenizer, self.tokens)):
            yield self.episode(at, response)

    def episode(self, at: int, response: str) -> Episode:
        return Episode(
            prompt=self.prompts[at],
            response=response,
            tokens=len(self.tokens[at]),
            finish=self.finishes[at],
            engine=self.engines[at],
        )


def training_traces(trajectories: Trajectories) -> list[list[dict[str, Any]]]:
    """Returns for each row its turns, in the fields of OpenEnv's `TrainingTrace`.

    A turn has `prompt_token_ids`, all tokens that the policy read before it in its segment;
    `completion_token_ids`; `per_token_logps`, under the sampling policy; and `loss_mask`, 1 on
    every token of the completion. The values are lists, as JSON has them.
    """
    host, traces = to_host(trajectories), []
    names = ("tokens_BT", "response_mask_BT", "segment_ids_BT", "behaviour_logprobs_BT")
    for tokens, mask, segments, logprobs in zip(*(getattr(host, x) for x in names), strict=True):
        turns = []
        for number in range(1, int(segments.max(initial=0)) + 1):
            own = np.flatnonzero(segments == number)
            edges = np.flatnonzero(np.diff(mask[own].astype(np.int8), prepend=0, append=0))
            for start, end in edges.reshape(-1, 2).tolist():
                chosen = own[start:end]
                turns.append(
                    {
                        "prompt_token_ids": tokens[own[:start]].tolist(),
                        "completion_token_ids": tokens[chosen].tolist(),
                        "per_token_logps": logprobs[chosen].tolist(),
                        "loss_mask": [1] * len(chosen),
                    }
                )
        traces.append(turns)
    return traces
