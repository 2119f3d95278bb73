"""The options, the engine and the rollout that all in-process samplers share."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import TypeAdapter, ValidationError

from rl4p.base.types import Array, Episode, Params, Prompt, Sampling, Trajectories
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
from rl4p.distributed.processes import to_host
from rl4p.engine.in_process import InProcess, RowOptions
from rl4p.model.policy import Policy
from rl4p.protocols.engine import Request
from rl4p.protocols.traits import RolloutTraits
from rl4p.rollout.annealing import Linear
from rl4p.rollout.answers import answers

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

    def of_one_response(self) -> list[str]:
        """Returns the options that act on the tokens of one response, and not of several turns."""
        return [*(["stop"] if self.stop else []), *self.untrained(), *self.tasks][:1]

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
        requests = [
            Request(tokens=prompt.tokens, keys_N=keys_N, max_tokens=limit, task=prompt.task)
            for prompt, keys_N in zip(prompts, keys_P, strict=True)
        ]
        return answers(policy, prompts, engine.complete(requests, greedy=greedy), limit)


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
