"""The engine whose completions come from servers."""

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from rl4p.errors import InputError, RunError
from rl4p.model.policy import Policy
from rl4p.protocols.engine import Completion, Request
from rl4p.rollout.remote.fleet import Fleet, Weights
from rl4p.rollout.remote.pool import Call
from rl4p.rollout.remote.probe import Probe
from rl4p.rollout.remote.read import Ask, seed_of
from rl4p.types import Params

if TYPE_CHECKING:
    from rl4p.rollout.remote.sampler import RemoteSampler

SECONDS_BETWEEN_STOPS = 0.05


class RemoteEngine:
    """An `Engine` whose tokens are drawn by the servers of a rollout.

    A completion has a seed of its own, which depends on its key only. It does not matter which
    server answers, as far as the servers compute alike.

    `publish` returns once the servers have the new weights. Before, it waits for the calls that are
    under way, since all tokens of a call are of the same weights; calls with `stop` are stopped.

    Args:
      options: the rollout.
    """

    def __init__(self, options: "RemoteSampler", policy: Policy) -> None:
        self.options = options
        self.policy = policy
        self.stops = options.receives_weights
        self.weights: Weights | None = None
        self.probe = Probe(policy)
        self.source: tuple[Sequence[weakref.ref], int] | None = None
        self.fleet: Fleet | None = Fleet.of(options)

    @property
    def version(self) -> int:
        return -1 if self.weights is None else self.weights.version

    def publish(self, params: Params, version: int) -> None:
        """Gives the servers new weights, unless they are those that they have from this engine.

        Raises:
          RunError: no server has them in time.
        """
        fleet = self.opened()
        leaves = jax.tree.leaves(params)
        before, of = ((), -1) if self.source is None else self.source
        if version == of and same(leaves, before):
            return
        self.source = None
        label = fleet.label(version)
        synced = self.options.receives_weights
        weights = Weights(
            version=version,
            label=label,
            exported=fleet.write(self.policy, params, label) if synced else None,
            probe=self.probe,
            expected=self.probe.expected(params) if synced else np.zeros(0, np.float32),
        )

        def set_weights() -> Weights:
            self.weights = weights
            return weights

        fleet.install(self, set_weights)
        self.source = [weakref.ref(leaf) for leaf in leaves], version

    def complete(
        self,
        requests: Sequence[Request],
        *,
        greedy: bool = False,
        stop: Callable[[np.ndarray], bool] | None = None,
    ) -> list[Completion]:
        fleet = self.opened()
        longest = self.policy.decoder.config.max_positions
        for request in requests:
            if len(request.tokens) + request.max_tokens > longest:
                raise InputError(
                    f"A request of {len(request.tokens)} tokens with max_tokens="
                    f"{request.max_tokens} is longer than the {longest} positions of the model."
                )
        with fleet.using(self.published) as weights:
            asks = [ask for request in requests for ask in self.asks(request, weights, greedy)]
            call = Call(asks=asks, label=weights.label, may_stop=stop is not None)
            future = fleet.start(fleet.pool.complete(call))
            try:
                if stop is not None:
                    ask_whether_to_stop(fleet, call, future, stop)
                future.result()
            finally:
                future.cancel()
        version = weights.version if self.options.receives_weights else -1
        return [found[0].completion(version, found[1]) for found in call.answers if found]

    def asks(self, request: Request, weights: Weights, greedy: bool) -> list[Ask]:
        """Returns what the servers are asked for: one completion for each key."""
        options, policy = self.options, self.policy
        temperature = options.temperature_at(weights.version)
        if temperature is None:
            temperature = options.sampling.temperature
        tokens = [int(token) for token in request.tokens]
        return [
            Ask(
                tokens=tokens,
                seed=seed_of(key, request.drawn, options.seed_bits),
                max_tokens=request.max_tokens,
                temperature=0.0 if greedy else temperature,
                top_k=0 if greedy else options.sampling.top_k,
                top_p=1.0 if greedy else options.sampling.top_p,
                end_ids=policy.end_ids,
                vocabulary=policy.decoder.config.vocabulary,
                messages=request.messages,
                tokenizer=policy.tokenizer,
            )
            for key in request.keys_N
        ]

    def published(self) -> Weights:
        if self.weights is None:
            raise RunError("The engine has no weights yet: publish comes before complete.")
        return self.weights

    def opened(self) -> Fleet:
        if self.fleet is None:
            raise RunError("The engine is closed.")
        return self.fleet

    def close(self) -> None:
        """Ends the connections, if no other engine has the same servers."""
        fleet, self.fleet = self.fleet, None
        self.weights = self.source = None
        if fleet is not None:
            fleet.release(self)


def ask_whether_to_stop(
    fleet: Fleet, call: Call, future: "Future[Any]", stop: Callable[[np.ndarray], bool]
) -> None:
    """Returns once the call has ended or was told to stop."""
    while not future.done():
        if stop(np.array(call.finished, bool)):
            fleet.loop.call_soon_threadsafe(fleet.pool.stop, lambda other: other is call)
            return
        try:
            future.result(timeout=SECONDS_BETWEEN_STOPS)
        except NotYet:
            continue


def same(leaves: Sequence[Any], before: Sequence[weakref.ref]) -> bool:
    """Returns whether arrays are the same objects as before."""
    return len(leaves) == len(before) and all(
        leaf is ref() for leaf, ref in zip(leaves, before, strict=True)
    )
