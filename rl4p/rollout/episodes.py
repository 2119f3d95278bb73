"""What all rollouts of many turns share: the engine, and the episodes of a call."""

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple
from zlib import crc32

import jax
import numpy as np

from rl4p.base.errors import InputError, RunError
from rl4p.base.types import Array, Episode, Params, Prompt, Sampling, Trajectories
from rl4p.configuration.bounds import Positive, Share
from rl4p.data.environment import SEED
from rl4p.distributed.counting import counted
from rl4p.distributed.processes import agreed, first, to_host
from rl4p.model.policy import Policy, padded_width
from rl4p.protocols.engine import Engine, Frees, OpensEngine, complete_all
from rl4p.protocols.phases import Anneals
from rl4p.protocols.traits import CacheSize, Planned, RolloutTraits
from rl4p.rollout.episode_loop import (
    AdaptiveConcurrency,
    EpisodeLoop,
    ForwardedRequests,
    Places,
)
from rl4p.rollout.recorder import CallLimits, FinishedEpisode, Recorder, rows_on_host, text_of
from rl4p.rollout.sampler import Sampler, sequence_keys


class SharedEngine:
    """The engine that the calls of a rollout share; it is no option.

    Attributes:
      idle: the seconds of the last call in which the engine had no request.
      concurrency: the simultaneous episodes of the calls, between two bounds; None without bounds.
    """

    engine: Engine | None = None
    policy: Policy | None = None
    idle: float = 0.0
    concurrency: AdaptiveConcurrency | None = None


class EpisodeKey(NamedTuple):
    """What distinguishes an episode from others of its prompt.

    Attributes:
      key: uint32 [...], the data of its random key.
      seed: the seed of the environment, equal for all samples of a prompt.
    """

    key: np.ndarray
    seed: int

    @property
    def episode_id(self) -> str:
        """Returns the key in hexadecimal digits."""
        return "".join(f"{part:08x}" for part in self.key.tolist())


class EpisodeFailure(Exception):
    """What answers the policy raised an exception, took too long, or returned nonsense."""


@dataclass(frozen=True, kw_only=True)
class EpisodeRollout(ABC):
    """A rollout whose rows are episodes of many turns (`protocols.engine.HoldsEpisodes`).

    The episodes of a call run at the same time, as coroutines.

    Attributes:
      engine: the sampler whose engine draws the tokens.
      max_response_tokens: the most tokens of an episode after its first context, tokens of others
        included.
      concurrency: the most episodes at the same time; None for all of a call. Of two numbers, the
        bounds between which the rollout chooses it, from call to call (`AdaptiveConcurrency`).
      max_failed: the largest share of the episodes of a call that may fail; above it the run stops.
    """

    many_turns = True

    engine: Any
    max_response_tokens: Positive
    concurrency: int | tuple[int, ...] | None = None
    max_failed: Share = 0.5
    opened: SharedEngine = field(
        default_factory=SharedEngine, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if (given := self.concurrency) is not None:
            bounds = given if isinstance(given, tuple) else (given, given)
            if len(bounds) != 2 or not 1 <= bounds[0] <= bounds[1]:
                written = list(given) if isinstance(given, tuple) else given
                raise InputError(
                    f"rollout.concurrency={written} must be a number from 1 on, or two of them, "
                    "the smaller one first, such as [4,64]."
                )
            if isinstance(given, tuple):
                self.opened.concurrency = AdaptiveConcurrency(*bounds)
        if not isinstance(self.engine, OpensEngine):
            raise InputError(
                "rollout.engine must be a rollout with an engine: choose continuous, "
                "naive_sampler, vllm, sglang or openai."
            )
        if isinstance(self.engine, Sampler):
            stop = ["stop"] if self.engine.stop else []
            if names := [*stop, *self.engine.untrained(), *self.engine.tasks]:
                raise InputError(
                    f"rollout.engine.{names[0]} cannot act in an episode, where a response has "
                    "several parts that end with the template's end token: leave it out."
                )
        if getattr(self.engine, "draft_tokens", 0):
            raise InputError(
                "rollout.engine.draft_tokens cannot act in episodes: which of them are decoded "
                "together depends on time, and with drafts their digits would too. Leave it out."
            )
        traits = RolloutTraits.read(self.engine)
        for name in ("alternatives", "replay_support"):
            if getattr(traits, name):
                raise InputError(
                    f"rollout.engine.{name} cannot act in episodes, whose rows keep the drawn "
                    "tokens alone: leave it out."
                )

    @property
    def roles(self) -> Sequence[str]:
        """The names of the agents of an episode, each with a conversation; () for a single one."""
        return ()

    @property
    def sampling(self) -> Sampling:
        return self.engine.sampling

    @property
    def trains(self) -> bool:
        return RolloutTraits.read(self.engine).trains

    @property
    def max_logprob_gap(self) -> float | Literal["auto"] | None:
        return RolloutTraits.read(self.engine).max_logprob_gap

    @property
    def dtype(self) -> str:
        return RolloutTraits.read(self.engine).dtype

    @property
    def sync_every(self) -> int:
        return RolloutTraits.read(self.engine).sync_every

    @property
    def sleep(self) -> bool:
        return RolloutTraits.read(self.engine).sleep

    def free(self) -> None:
        """Gives the memory of servers back until the next call, if the engine's option says so."""
        if isinstance(self.opened.engine, Frees):
            self.opened.engine.free()

    def temperature_at(self, step: int) -> float | None:
        """Returns the temperature of a step if it changes over the run, otherwise None."""
        return self.engine.temperature_at(step) if isinstance(self.engine, Anneals) else None

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
        keys_B = to_host(sequence_keys(key, len(prompts) * group_size))
        keys_PN = keys_B.reshape(len(prompts), group_size, *keys_B.shape[1:])
        engine = self.opened.engine
        if engine is None or self.opened.policy is not policy:  # all calls share it, until `close`
            self.close()
            engine = self.open_engine(policy)
            self.opened.engine, self.opened.policy = engine, policy
        engine.publish(params, version)
        seeds = None if greedy else [seed_of(keys_N[0]) for keys_N in keys_PN]
        episodes = self.hold(engine, policy, prompts, keys_PN, seeds=seeds, greedy=greedy)
        engine.release()
        trajectories, words = self.rows(policy, episodes, group_size)
        return policy.mesh.shard_rows(trajectories), words

    def hold(
        self,
        engine: Engine,
        policy: Policy,
        prompts: Sequence[Prompt],
        keys_PN: np.ndarray,
        *,
        seeds: Sequence[int] | None = None,
        greedy: bool = False,
    ) -> list[FinishedEpisode]:
        samples = [
            (prompt, EpisodeKey(key, prompt.metadata.get(SEED, seed)))
            for prompt, keys_N, seed in zip(
                prompts, keys_PN, seeds or map(seed_of_prompt, prompts), strict=True
            )
            for key in keys_N
        ]
        size = len(samples), policy.decoder.config.max_positions
        if first():
            most = self.most_at_a_time or len(samples)
            places = Places(
                self.opened.concurrency or AdaptiveConcurrency(most, most), len(samples)
            )
            loop = EpisodeLoop(*size, places.count_turn)
            around, coroutines = self.coroutines(loop, policy, samples)
            with counted("rollout", "episodes", len(samples)) as count:

                async def in_turn(
                    coroutine: Coroutine[Any, Any, FinishedEpisode],
                ) -> FinishedEpisode:
                    try:
                        async with places:  # each episode that ends gives its place to another
                            episode = await coroutine
                    finally:
                        coroutine.close()  # of one that was cancelled before it began
                    loop.ended += [tuple(segment.tokens) for segment in episode.segments]
                    count.add(1)
                    return episode

                runs = [in_turn(each) for each in coroutines]
                episodes = loop.run(engine, runs, greedy=greedy, around=around)
            self.opened.idle = loop.idle
            places.end()
        else:
            complete_all(engine, ForwardedRequests(*size), greedy=greedy)
            episodes = []
        if jax.process_count() > 1:
            rows = agreed([each.to_dict() for each in episodes])
            episodes = [FinishedEpisode.from_dict(row) for row in rows]
            for episode, (prompt, _) in zip(episodes, samples, strict=True):
                episode.prompt = prompt  # the same object for all samples of a group
        failed = [each for each in episodes if each.failure is not None]
        if len(failed) > self.max_failed * len(episodes):
            raise RunError(
                f"{len(failed)} of {len(episodes)} episodes failed (rollout.max_failed is "
                f"{self.max_failed:.0%}), such as one of the prompt {failed[0].prompt.id}: "
                f"{failed[0].failure}"
            )
        return episodes

    def rows(
        self, policy: Policy, episodes: Sequence[FinishedEpisode], group_size: int
    ) -> tuple[Trajectories, Sequence[Episode]]:
        return rows_on_host(policy, episodes, group_size, self.max_response_tokens)

    def caches(self, run: Any) -> Sequence[CacheSize]:
        """Returns the cache of the engine, and what turns keep.

        The caches are as long as an episode; there are none if the engine is a server.
        """
        if not isinstance(self.engine, Planned):
            return ()
        rows = min(self.most_at_a_time or run.sequences, run.sequences)
        slots = self.engine.slots_of(rows) or rows
        kept = rows * max(1, len(self.roles))  # a cache of the conversation of each role
        columns = padded_width(run.prompt_columns + run.response_tokens)
        return CacheSize(rows=slots, columns=columns), CacheSize(rows=kept, columns=columns)

    def open_engine(self, policy: Policy) -> Engine:
        return self.engine.open(policy)

    @property
    def most_at_a_time(self) -> int | None:
        """The most simultaneous episodes; None for all of a call."""
        return max(self.concurrency) if isinstance(self.concurrency, tuple) else self.concurrency

    def times(self) -> Mapping[str, float]:
        return {"environment": self.opened.idle}

    def metrics(self) -> Mapping[str, float]:
        adaptive = self.opened.concurrency
        return {} if adaptive is None else {"rollout/concurrency": float(adaptive.number)}

    @abstractmethod
    def coroutines(
        self, loop: EpisodeLoop, policy: Policy, samples: Sequence[tuple[Prompt, EpisodeKey]]
    ) -> tuple[AbstractAsyncContextManager[Any], Sequence[Coroutine[Any, Any, FinishedEpisode]]]:
        """Returns what is open while the episodes run, and the episodes."""

    def recorder(
        self,
        loop: EpisodeLoop,
        policy: Policy,
        prompt: Prompt,
        key: np.ndarray,
        *,
        calls: int,
        call_tokens: int | None,
    ) -> Recorder:
        """Returns the recorder of a new episode with at most so many calls."""
        return Recorder(
            generate=loop.complete,
            episode=FinishedEpisode(prompt=prompt, segments=[]),
            key=key,
            limits=CallLimits(
                tokens=self.max_response_tokens,
                calls=calls,
                call_tokens=call_tokens,
                positions=loop.longest,
            ),
            sampling=self.sampling,
            decode=partial(text_of, policy.tokenizer),
            end_ids=policy.end_ids,
        )

    def close(self) -> None:
        """Ends the engine of the calls; another call opens it again."""
        if self.opened.engine is not None:
            self.opened.engine.close()
            self.opened.engine = None


def seed_of(key: np.ndarray) -> int:
    """Returns a seed in [0, 2^31) of the data of a random key."""
    return int(np.bitwise_xor.reduce(key.astype(np.uint32))) >> 1


def seed_of_prompt(prompt: Prompt) -> int:
    """Returns a seed in [0, 2^31) that depends on the task and the id of a prompt alone."""
    return crc32(f"{prompt.task}\0{prompt.id}".encode()) >> 1


def check_names(names: Iterable[Any], roles: Sequence[str]) -> None:
    """Refuses names that are no roles of an episode.

    Raises:
      EpisodeFailure: there is such a name.
    """
    if unknown := [name for name in names if name not in roles]:
        known = f"the roles are {', '.join(roles)}" if roles else "there are no roles"
        raise EpisodeFailure(f"{unknown[0]!r} is no role: {known}")
