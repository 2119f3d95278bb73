"""Engines: tokens in, tokens out. A sampler opens one with its method `open(policy)`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from rl4p.base.serialization import Serializable
from rl4p.base.types import Episode, Finish, Params, Prompt, Trajectories
from rl4p.model.policy import Policy


@dataclass(frozen=True, kw_only=True)
class Request(Serializable):
    """A context that an engine continues once for each of its keys.

    Attributes:
      tokens: the token ids of the context, at least one.
      keys_N: uint32 [N, ...], the data of N random keys (`jax.random.key_data`), one for each
        completion. Token t of a completion is drawn with fold_in(key, drawn + t). A completion
        therefore does not depend on the other requests.
      max_tokens: the most tokens of a completion, the end token included.
      drawn: how many tokens at the end of the context these keys have already drawn; above 0 if
        the request continues a partial response.
      keep: whether later requests may continue the completions, with contexts that begin with
        exactly the tokens of this context and a completion. An engine may then keep their cache
        until weights are published, and compute only the tokens after them. This changes results
        only by rounding. An engine that keeps nothing computes whole contexts.
      messages: the conversation that the context consists of, which servers of chats take instead
        of tokens; None if it is not known.
      task: the task of the prompt, which may have sampling options of its own.
      ended: contexts with their completions, kept so far, that no other request will continue.
    """

    tokens: Sequence[int]
    keys_N: np.ndarray
    max_tokens: int
    drawn: int = 0
    keep: bool = False
    messages: Sequence[Mapping[str, Any]] | None = None
    task: str = ""
    ended: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Completion(Serializable):
    """The continuation of a context, on the host.

    Attributes:
      tokens: int32 [n], the token ids, the end token included.
      logprobs: float32 [n], under the distribution that the tokens were drawn from.
      versions: int32 [n], the weight version that drew each token; -1 if no policy did.
      finish: the reason why it ended.
      engine: the address of the server that drew the last token; "" for this process.
      experts: the experts of each token of the context and of `tokens`, as in
        `Trajectories.experts_BTX`; None if they are not recorded.
      alternatives, alternative_logprobs: the most probable tokens beside each of `tokens`, as in
        `Trajectories.alternatives_BTA`; None if they are not recorded.
    """

    tokens: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    finish: Finish
    engine: str = ""
    experts: np.ndarray | None = None
    alternatives: np.ndarray | None = None
    alternative_logprobs: np.ndarray | None = None

    def by_token(self) -> dict[str, np.ndarray]:
        """Returns the arrays with a row for each of `tokens` by name, those that are recorded."""
        names = "tokens", "logprobs", "versions", "alternatives", "alternative_logprobs"
        return {name: x for name in names if (x := getattr(self, name)) is not None}


class Engine(Protocol):
    """A source of completions, which samples with published weights.

    Attributes:
      version: the weight version that it decodes with; -1 before the first `publish`.
      stops: whether `complete` takes `stop`.
    """

    version: int
    stops: bool

    def publish(self, params: Params, version: int) -> None:
        """Replaces the weights; returns when every later completion uses the new ones."""
        ...

    def complete(
        self,
        requests: Sequence[Request],
        *,
        greedy: bool = False,
        stop: Callable[[np.ndarray], bool] | None = None,
    ) -> list[Completion]:
        """Returns the completions of all requests, in the order of the requests and their keys.

        Contexts and limits may differ. A completion depends on its own context and key only. All
        its tokens are of the weights at the start of the call, also if others are published.

        Args:
          greedy: whether to choose the most probable token at every step.
          stop: called from time to time with an array of bool: for each completion, whether it
            has finished; once it returns true, the call returns the tokens so far, and
            unfinished completions have `Finish.ABORT`. They may be empty.

        Raises:
          InputError: a request does not fit into the positions of the model.
        """
        ...

    def release(self) -> None:
        """Releases memory until the next `publish`, which comes before the next completion."""
        ...

    def close(self) -> None:
        """Releases the weights and ends what the engine has opened."""
        ...


class RequestSource(Protocol):
    """What `Streams.stream` completes: requests that depend on earlier completions.

    Attributes:
      most: the most requests that are unfinished at a time.
      longest: the most tokens of a context and its completion.
    """

    most: int
    longest: int

    def take(self, *, wait: bool) -> Sequence[Request]:
        """Returns the new requests, each with one key.

        Args:
          wait: whether to wait for one. The result is then empty only if no other will come.
        """
        ...

    def give(self, request: Request, completion: Completion) -> None:
        """Receives the completion of a request."""
        ...


@runtime_checkable
class Streams(Protocol):
    """An engine that begins new requests while it completes others."""

    def stream(self, source: RequestSource, *, greedy: bool = False) -> None:
        """Completes the requests of a source until the source is exhausted.

        All tokens are of the weights at the start of the call.
        """
        ...


def complete_all(engine: Engine, source: RequestSource, *, greedy: bool = False) -> None:
    """Completes the requests of a source, with any engine.

    An engine that does not stream completes those that wait, and then those that came meanwhile.
    """
    if isinstance(engine, Streams):
        engine.stream(source, greedy=greedy)
        return
    while requests := source.take(wait=True):
        completions = engine.complete(requests, greedy=greedy)
        for request, completion in zip(requests, completions, strict=True):
            source.give(request, completion)


@runtime_checkable
class OpensEngine(Protocol):
    """A rollout that samples with an engine."""

    def open(self, policy: Policy) -> Engine:
        """Returns the engine; `Engine.publish` gives it its first weights."""
        ...


@runtime_checkable
class Frees(Protocol):
    """A rollout or an engine that can give memory back between two calls."""

    def free(self) -> None:
        """Gives memory back; the next call takes it again. Nothing happens without a call before.

        Raises:
          RunError: it could not.
        """
        ...


@runtime_checkable
class HasMetrics(Protocol):
    """A rollout or a reward with metrics of its own."""

    def metrics(self) -> Mapping[str, float]:
        """Returns the metrics of the last call, by their whole names.

        A reward returns what it measured since the last call of this method.
        """
        ...


@runtime_checkable
class HoldsEpisodes(Protocol):
    """A rollout whose rows are episodes of many turns (`rollout=environment`, `rollout=agent`).

    It has no method `open`, since its engine alone does not make a row.
    """

    def open_engine(self, policy: Policy) -> Engine:
        """Returns an engine for `hold`; `Engine.publish` gives it its first weights."""
        ...

    def hold(
        self,
        engine: Engine,
        policy: Policy,
        prompts: Sequence[Prompt],
        keys_PN: np.ndarray,
        *,
        seeds: Sequence[int] | None = None,
        greedy: bool = False,
    ) -> list[Any]:
        """Holds N episodes of each of P prompts, and returns them in order.

        An episode has the attributes `tokens`, `versions` and `finish` of a `Completion`, and
        `failure`.

        Args:
          keys_PN: uint32 [P, N, ...], the data of a random key for each episode.
          seeds: the seed of the environment of each prompt; None makes it from the prompt's id, so
            that it is the same in every evaluation.
          greedy: whether to choose the most probable token at every step.
        """
        ...

    def rows(
        self, policy: Policy, episodes: Sequence[Any], group_size: int
    ) -> tuple[Trajectories, Sequence[Episode]]:
        """Returns the rows of episodes on the host, and the episodes in words."""
        ...

    def times(self) -> Mapping[str, float]:
        """Returns the seconds of parts of the last call, by name, for metrics `time/NAME`."""
        ...


def opened(rollout: OpensEngine | HoldsEpisodes, policy: Policy) -> Engine:
    """Returns a new engine of a rollout."""
    if isinstance(rollout, HoldsEpisodes):
        return rollout.open_engine(policy)
    return rollout.open(policy)


def finish(tokens: np.ndarray, end_ids: Sequence[int], limit: int = 0) -> Finish:
    """Returns whether tokens ended with an end token, at their limit, or before both."""
    if len(tokens) and tokens[-1] in end_ids:
        return Finish.STOP
    return Finish.ABORT if len(tokens) < limit else Finish.LENGTH
