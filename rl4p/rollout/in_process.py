"""The in-process engine: it decodes on the devices of the run."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.distributed.processes import to_host
from rl4p.errors import InputError
from rl4p.model.policy import Policy, pad_left
from rl4p.model.sampling import draw
from rl4p.protocols.engine import Completion, Request, finish
from rl4p.types import Array, Params, Sampling


class Sequences(NamedTuple):
    """The constants of B sequences that are decoded.

    Attributes:
      lengths_B: int32, the number of tokens in the context.
      limits_B, drawn_B: int32, `max_tokens` and `drawn` of the request.
      keys_B: uint32 [B, ...], the data of the random keys.
    """

    lengths_B: Array
    limits_B: Array
    drawn_B: Array
    keys_B: Array

    @staticmethod
    def shapes(B: int) -> "Sequences":
        """Returns the shapes of the constants of B sequences."""
        numbers_B: Any = jax.ShapeDtypeStruct((B,), jnp.int32)
        data = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
        keys_B: Any = jax.ShapeDtypeStruct((B, *data.shape), data.dtype)
        return Sequences(numbers_B, numbers_B, numbers_B, keys_B)

    def take(self, sequence_n: Array) -> "Sequences":
        """Returns the given sequences; the constants of a free slot (B) are arbitrary."""
        return Sequences(*(jnp.take(x, sequence_n, axis=0, mode="clip") for x in self))

    def draw(
        self,
        logits_BV: Array,
        sampling: Sampling,
        t_B: Array,
        greedy: Array,
        temperature: Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Draws token t_B of each completion; returns int32 [B] and log-probabilities [B]."""
        keys_B = jax.random.wrap_key_data(jnp.asarray(self.keys_B))
        return draw(logits_BV, sampling, keys_B, self.drawn_B + t_B, greedy, temperature)


class Batch(NamedTuple):
    """P requests with B completions, on the host.

    Attributes:
      tokens_PT, mask_PT: the contexts, padded left so that completions start in one column.
      request_B: the request of each completion, in ascending order.
      sequences: the constants of each completion.
    """

    tokens_PT: np.ndarray
    mask_PT: np.ndarray
    request_B: np.ndarray
    sequences: Sequences

    @staticmethod
    def of(requests: Sequence[Request], pad_id: int) -> "Batch":
        """Creates the batch of requests."""
        counts_P = [len(x.keys_N) for x in requests]
        request_B = np.repeat(np.arange(len(requests), dtype=np.int32), counts_P)
        constants_P = np.array([(len(x.tokens), x.max_tokens, x.drawn) for x in requests], np.int32)
        keys_B = np.concatenate([x.keys_N for x in requests])
        return Batch(
            *pad_left([x.tokens for x in requests], pad_id),
            request_B=request_B,
            sequences=Sequences(*constants_P[request_B].T, keys_B=keys_B),
        )


class InProcess:
    """An `Engine` that decodes with the parameters of the run.

    Args:
      decode: the method `decode` of a sampler.
      stops: whether it takes `stop`.
      temperature_at: returns the temperature of a weight version, if it changes over the run.
    """

    def __init__(
        self,
        policy: Policy,
        decode: Callable[..., tuple[Array, Array, Array]],
        *,
        stops: bool = False,
        temperature_at: Callable[[int], float | None] = lambda step: None,
    ) -> None:
        self.policy = policy
        self.decode = decode
        self.stops = stops
        self.temperature_at = temperature_at
        self.weights: tuple[Params | None, int] = (None, -1)

    @property
    def version(self) -> int:
        return self.weights[1]

    def publish(self, params: Params, version: int) -> None:
        """Replaces the weights without a copy where the sampling mesh allows it.

        Arrays that the caller donates afterwards, as an update does, can no longer be decoded with.
        """
        self.weights = self.policy.for_sampling(params), version

    def complete(
        self,
        requests: Sequence[Request],
        *,
        greedy: bool = False,
        stop: Callable[[np.ndarray], bool] | None = None,
    ) -> list[Completion]:
        params, version = self.weights  # another thread may publish new ones meanwhile
        longest = self.policy.decoder.config.max_positions
        for request in requests:
            if len(request.tokens) + request.max_tokens > longest:
                raise InputError(
                    f"A request of {len(request.tokens)} tokens with max_tokens="
                    f"{request.max_tokens} is longer than the {longest} positions of the model."
                )
        batch = Batch.of(requests, self.policy.pad_id)
        options: dict[str, Any] = {} if stop is None else {"stop": stop}
        if (temperature := self.temperature_at(version)) is not None:
            options["temperature"] = temperature
        found = self.decode(self.policy, params, batch, greedy=greedy, **options)
        limits = batch.sequences.limits_B.tolist()
        return [
            Completion(
                tokens=tokens_R[:length],
                logprobs=logprobs_R[:length],
                versions=np.full(length, version, np.int32),
                finish=finish(tokens_R[:length], self.policy.end_ids, limit),
            )
            for tokens_R, logprobs_R, length, limit in zip(*to_host(found), limits, strict=True)
        ]

    def close(self) -> None:
        self.weights = None, -1
