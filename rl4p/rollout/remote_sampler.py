"""The options of rollouts whose tokens are drawn by servers."""

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.http import is_loopback
from rl4p.base.types import (
    Array,
    Episode,
    Finish,
    Microbatching,
    Params,
    Prompt,
    Sampling,
    Trajectories,
)
from rl4p.configuration.bounds import AboveZero, Natural, NonNegative, Positive, TopShare
from rl4p.configuration.capability import WrittenPath
from rl4p.distributed.processes import to_host
from rl4p.engine.remote.engine import RemoteEngine, SharedServers, WeightTransfer
from rl4p.engine.remote.protocol import PoolOptions, ServerProtocol
from rl4p.engine.remote.weights import Probe, WeightsFolder
from rl4p.learner.logprobs import ScoreOptions, score_tokens
from rl4p.model.policy import Policy
from rl4p.protocols.traits import RolloutTraits
from rl4p.rollout.annealing import Linear
from rl4p.rollout.sampler import answers, requests_of, sequence_keys


class Opened:
    """The engine that the calls of a rollout share; it is no option."""

    engine: RemoteEngine | None = None


@dataclass(frozen=True, kw_only=True)
class RemoteSampler(PoolOptions, ABC):
    """A rollout that requests one completion at a time of servers, each with a seed of its own.

    A subclass names the protocol of its servers. A server that cannot be reached, is too slow or
    gives a response that cannot be correct is taken out, and others get its requests. It takes part
    again once it is healthy, and has the current weights if it receives them.

    Attributes:
      max_response_tokens: the longest response in tokens, the end token included.
      temperature, top_p: the sampling distribution (`types.Sampling`).
    """

    max_response_tokens: Positive
    temperature: NonNegative = 1.0
    top_p: TopShare = 1.0
    opened: Opened = field(default_factory=Opened, init=False, repr=False, compare=False)

    @property
    def sampling(self) -> Sampling:
        return Sampling(temperature=self.temperature, top_p=self.top_p)

    def temperature_at(self, step: int) -> float | None:
        """Returns the temperature of a step if it changes over the run, otherwise None."""
        return None

    def sampling_at(self, step: int) -> Sampling:
        """Returns the sampling distribution of a step."""
        own, temperature = self.sampling, self.temperature_at(step)
        return own if temperature is None else replace(own, temperature=temperature)

    @abstractmethod
    def protocol(self) -> ServerProtocol:
        """Returns the protocol of the servers."""

    def transfer(self, policy: Policy) -> WeightTransfer | None:
        """Returns how weights reach the servers; None if they have weights of their own."""
        return None

    def open(self, policy: Policy) -> RemoteEngine:
        """Returns the engine; `publish` gives it its first weights.

        Raises:
          InputError: the run has several processes, or another mesh for sampling.
        """
        mesh = policy.mesh
        if mesh.rollout_devices or mesh.sampling_tp not in (None, mesh.devices.shape["tp"]):
            key = "rollout_devices" if mesh.rollout_devices else "sampling_tp"
            raise InputError(
                f"mesh.{key} would have no effect, because servers draw the tokens: leave it out."
            )
        if jax.process_count() > 1:
            raise InputError(
                f"rollout={type(self).__name__.lower()} needs a run of one process, but this one "
                f"has {jax.process_count()}: choose rollout=continuous, or leave mesh.processes "
                "out."
            )
        servers = SharedServers.of(self, self.protocol())
        try:
            transfer = self.transfer(policy)
        except BaseException:
            servers.release()
            raise
        sleeps = RolloutTraits.read(self).sleep
        return RemoteEngine(policy, servers, self.sampling_at, transfer, sleeps=sleeps)

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
        engine, limit = self.opened.engine, self.max_response_tokens
        if engine is None or engine.policy is not policy:  # all calls share it, until `close`
            self.close()
            engine = self.opened.engine = self.open(policy)
        engine.publish(params, version)
        keys_P = np.split(to_host(sequence_keys(key, len(prompts) * group_size)), len(prompts))
        requests = requests_of(prompts, keys_P, limit)
        return answers(policy, prompts, engine.complete(requests, greedy=greedy), limit)

    def free(self) -> None:
        """Gives the memory of the servers back until the next call, if the option says so."""
        if self.opened.engine is not None:
            self.opened.engine.free()

    def close(self) -> None:
        """Ends the engine of the calls; another call opens it again."""
        if self.opened.engine is not None:
            self.opened.engine.close()
            self.opened.engine = None


@dataclass(frozen=True, kw_only=True)
class SyncedSampler(RemoteSampler):
    """A rollout whose servers receive the weights of the run, and prove that they use them.

    New weights are written into a folder that the servers can read. Each server stops, loads them,
    empties its caches and goes on. It then must report the new version, if it reports any, the
    checksums of the tensors, if it has comparable ones, and, always, the log-probabilities that the
    trainer computes for a fixed sequence.

    Attributes:
      annealing: the change of the temperature over the steps of a run; None for none.
      top_k: the tokens that may be drawn, the most probable ones; 0 for all.
      sync_every: the steps between two updates of the servers' weights (`Sampler`).
      sleep: whether the servers give the memory of weights and cache back while an update runs,
        for servers on the devices of the run. They load the weights again before they sample.
      weights_folder: the folder for weights, at a path that the servers can read; None for a
        temporary one of this machine.
      update_seconds: the deadline of a server for new weights.
      max_probe_gap: the largest error of a log-probability of the fixed sequence; servers that
        compute in bfloat16 need 0.1 or more. After the first weights of a server it is at most a
        hundred times the error with these, which is its rounding. None accepts any, unless the old
        weights fit better.
      max_logprob_gap: the run ends if `rollout/logprob_gap_mean` of a step is larger; None never
        ends it. `auto` is 0.05, for the collectors whose tokens have the weights of the step.
    """

    annealing: Linear | None = None
    top_k: Natural = 0
    sync_every: Positive = 1
    sleep: bool = False
    weights_folder: WrittenPath | None = None
    update_seconds: AboveZero = 600.0
    max_probe_gap: AboveZero | None = 0.25
    max_logprob_gap: AboveZero | Literal["auto"] | None = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.annealing is not None and self.temperature == 0:
            raise ValueError("annealing needs a temperature above 0 to begin with.")

    @property
    def sampling(self) -> Sampling:
        return Sampling(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)

    def temperature_at(self, step: int) -> float | None:
        return None if self.annealing is None else self.annealing(self.temperature, step)

    def folder(self, parent: Path, **options: Any) -> WeightsFolder:
        """Returns the folder through which weights reach the servers."""
        local = all(map(is_loopback, self.servers))
        return WeightsFolder(parent, synced=not local, **options)

    def transfer(self, policy: Policy) -> WeightTransfer:
        parent = Path(self.weights_folder or Path(tempfile.gettempdir(), "rl4p"))
        return WeightTransfer(
            folder=self.folder(parent),
            probe=Probe(policy, token_logprobs, limit=self.max_probe_gap),
            seconds=self.update_seconds,
        )


def token_logprobs(policy: Policy, tokens: Sequence[int], params: Params) -> np.ndarray:
    """Returns float32 [T - 1], log p(token t | tokens before t) of tokens 1 to T - 1.

    They come from the trainer's forward pass, at temperature 1 over the whole vocabulary.

    Args:
      params: the trained parameters.
    """
    mesh, rows, T = policy.mesh, policy.mesh.row_shards, len(tokens)
    tokens_BT = np.tile(np.array(tokens, np.int32), (rows, 1))
    numbers_BT = np.tile(np.arange(T, dtype=np.int32), (rows, 1))
    trajectories = Trajectories(
        tokens_BT=tokens_BT,
        response_mask_BT=numbers_BT > 0,
        positions_BT=numbers_BT,
        segment_ids_BT=np.ones((rows, T), np.int32),
        behaviour_logprobs_BT=np.zeros((rows, T), np.float32),
        policy_version_BT=np.zeros((rows, T), np.int32),
        group_ids_B=np.arange(rows, dtype=np.int32),
        finish_B=np.full(rows, Finish.LENGTH, np.int8),
    )
    options = ScoreOptions(
        decoder=policy.decoder,
        sampling=Sampling(),
        microbatching=Microbatching(tokens=T, widths=1),
        mesh=mesh,
    )
    scores = score_tokens(options, policy.merged(params), mesh.shard_rows(trajectories))
    return np.asarray(jax.device_get(scores["logprobs"]))[0, 1:]
