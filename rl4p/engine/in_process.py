"""Engines of this process: they decode with the parameters of the run."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from rl4p.base.types import Finish, Params, Sampling
from rl4p.distributed.counting import Count, counted, newest
from rl4p.engine.batch import Kept
from rl4p.engine.decode import MOST_STEPS, SharedDistribution
from rl4p.engine.detokenizer import Detokenizer, stopped_at
from rl4p.engine.driver import CallSteps, Driver
from rl4p.engine.layout import Layout, few_tokens, shares_prompts, slot_counts
from rl4p.engine.sequence import Chunk, Slots, TokenSequence, check_request
from rl4p.engine.speculation import Counts, Speculation, parameter_tokens
from rl4p.model.policy import Policy, padded_width
from rl4p.protocols.engine import Completion, Request, RequestSource, finish

BETWEEN_STOPS = 32  # decode steps between two calls of `stop`
BETWEEN_REQUESTS = 16  # decode steps between two looks at the new requests of a source

Stop = Callable[[np.ndarray], bool]


@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """The sampling options of a completion.

    Attributes:
      sampling: the distribution that tokens are drawn from.
      stop: the strings that end it.
    """

    sampling: Sampling
    stop: tuple[str, ...] = ()


class PublishedWeights(NamedTuple):
    """Published weights in sampling form, and the caches that were kept of them."""

    params: Params | None
    version: int
    kept: Kept


class Drawn(NamedTuple):
    """The tokens of one completion before `stop` cuts it; the attributes are as in `Completion`."""

    tokens: np.ndarray
    logprobs: np.ndarray
    experts: np.ndarray | None = None
    alternatives: np.ndarray | None = None
    alternative_logprobs: np.ndarray | None = None


# The options that the program of a `SharedDistribution` knows.
SHARED = ("temperature", "top_k", "top_p", "min_p", "replay_support")
NO_WEIGHTS = PublishedWeights(None, -1, {})


class InProcess(ABC):
    """An `Engine` of this process. Its method `decode` continues the contexts of requests.

    Args:
      options: returns the sampling options of a task; "" is any other task.
      temperature_at: returns the temperature of a weight version, if it changes over the run.
    """

    stops = False
    alternatives = 0  # as of `SharedDistribution`

    def __init__(
        self,
        policy: Policy,
        options: Callable[[str], RowOptions],
        temperature_at: Callable[[int], float | None] = lambda version: None,
    ) -> None:
        self.policy, self.options, self.temperature_at = policy, options, temperature_at
        self.weights = NO_WEIGHTS

    @property
    def sampling(self) -> Sampling:
        return self.options("").sampling

    @cached_property
    def detokenizer(self) -> Detokenizer:
        return Detokenizer(self.policy.tokenizer)

    @property
    def version(self) -> int:
        return self.weights.version

    def publish(self, params: Params, version: int) -> None:
        """Replaces the weights without a copy where the sampling mesh allows it.

        Arrays that the caller donates afterwards, as an update does, can no longer be decoded with.
        """
        self.weights = PublishedWeights(self.policy.for_sampling(params), version, {})

    def complete(
        self, requests: Sequence[Request], *, greedy: bool = False, stop: Stop | None = None
    ) -> list[Completion]:
        weights = self.weights  # another thread may publish new ones meanwhile
        longest = self.policy.decoder.config.max_positions
        for request in requests:
            check_request(request.tokens, len(request.keys_N), request.max_tokens, longest)
        distribution = self.distribution(weights.version, greedy, requests)
        of_rows = [request for request in requests for _ in request.keys_N]
        with counted("rollout", "sequences", len(of_rows)) as count:
            drawn = self.decode(weights, requests, distribution, stop, greedy, count)
        completions = []
        for own, request in zip(drawn, of_rows, strict=True):
            count = self.stopped_at(request, own.tokens.tolist())
            ending = finish(own.tokens, self.policy.end_ids, request.max_tokens)
            ending = ending if count is None else Finish.STOP
            cut = completion(own.tokens[:count], own.logprobs[:count], weights.version, ending)
            if own.experts is not None:
                cut = replace(cut, experts=own.experts[: len(request.tokens) + len(cut.tokens)])
            if own.alternatives is not None and own.alternative_logprobs is not None:
                cut = replace(
                    cut,
                    alternatives=own.alternatives[:count],
                    alternative_logprobs=own.alternative_logprobs[:count],
                )
            completions.append(cut)
        return completions

    def stopped_at(self, request: Request, tokens: Sequence[int]) -> int | None:
        """Returns the number of new tokens of a completion up to its first stop string, or None."""
        stops = self.options(request.task).stop
        if not stops:
            return None
        before = request.tokens[len(request.tokens) - request.drawn :]
        whole = [*before, *tokens]
        count = stopped_at(self.detokenizer, stops, whole, self.policy.end_ids)
        return None if count is None else count - len(before)

    def distribution(
        self, version: int, greedy: bool, requests: Sequence[Request]
    ) -> SharedDistribution | None:
        """Returns the distribution of tokens of a weight version; None if rows have their own."""
        shared = replace(Sampling(), **{x: getattr(self.sampling, x) for x in SHARED})
        if any(self.options(task).sampling != shared for task in {x.task for x in requests}):
            return None
        return SharedDistribution(
            sampling=self.sampling,
            greedy=greedy or self.sampling.temperature == 0,
            temperature=self.temperature_at(version),
            alternatives=self.alternatives,
        )

    def row_sampling(self, version: int, greedy: bool, request: Request) -> Sampling:
        """Returns the distribution of a request if rows have their own."""
        sampling, temperature = self.options(request.task).sampling, self.temperature_at(version)
        if greedy or temperature is not None:
            return replace(sampling, temperature=0.0 if greedy else temperature)
        return sampling

    @abstractmethod
    def decode(
        self,
        weights: PublishedWeights,
        requests: Sequence[Request],
        distribution: SharedDistribution | None,
        stop: Stop | None,
        greedy: bool,
        count: Count,
    ) -> Iterable[Drawn]:
        """Returns what was drawn for all completions.

        Args:
          weights: the weights at the start of the call.
          distribution: the distribution of all rows; None if rows have their own (`row_sampling`).
          stop: as in `complete`; None unless the engine `stops`.
          greedy: as in `complete`.
          count: counts the completions that are done, and their tokens.
        """

    def release(self) -> None:
        self.weights = NO_WEIGHTS

    def close(self) -> None:
        self.release()


class ContinuousEngine(InProcess):
    """An engine that decodes by continuous batching (`Batch`).

    Args:
      slots: the most sequences that are decoded at a time; None decodes all of a call at once.
      max_response_tokens: the longest completion of a request of the rollout.
      draft_tokens: the most drafted tokens of a decode step (`Speculation`); 0 for none.
      counts: counts tokens and decode steps, if tokens may be drafted.
      alternatives: how many of the most probable tokens are recorded with each drawn token.

    Attributes:
      prefilled_tokens: the number of tokens of contexts that were computed so far.
    """

    stops = True

    def __init__(
        self,
        policy: Policy,
        options: Callable[[str], RowOptions],
        temperature_at: Callable[[int], float | None],
        *,
        slots: int | None,
        max_response_tokens: int,
        draft_tokens: int = 0,
        counts: Counts | None = None,
        alternatives: int = 0,
    ) -> None:
        super().__init__(policy, options, temperature_at)
        self.alternatives = min(alternatives, policy.decoder.config.vocabulary)
        self.slots, self.max_response_tokens = slots, max_response_tokens
        self.draft_tokens, self.counts = draft_tokens, counts or Counts()
        self.prefilled_tokens = self.stream_columns = 0

    def decode(
        self,
        weights: PublishedWeights,
        requests: Sequence[Request],
        distribution: SharedDistribution | None,
        stop: Stop | None,
        greedy: bool,
        count: Count,
    ) -> Iterable[Drawn]:
        own = None if distribution is not None else partial(self.row_sampling, weights.version)
        of_sequences = {
            sequence: request
            for request in requests
            for sequence in self.sequences(request, own and own(greedy, request))
        }
        sequences = list(of_sequences)
        logprobs: dict[TokenSequence, list[float]] = {x: [] for x in sequences}
        unfinished = dict.fromkeys(sequences)
        layout, kept, speculation = self.with_drafts(
            weights.params, self.layout(requests, stops=stop is not None), weights.kept
        )
        driver = Driver(
            *(self.policy, weights.params, str(weights.version), layout),
            call_steps=CallSteps(MOST_STEPS if stop is None else BETWEEN_STOPS),
            distribution=distribution,
            kept=kept,
            speculation=speculation,
        )

        def receive(chunks: list[Chunk]) -> None:
            before = len(unfinished)
            for chunk in chunks:
                sequence = chunk.sequence
                logprobs[sequence] += chunk.logprobs
                if chunk.finish is not None:
                    del unfinished[sequence]
                    continue
                new = sequence.tokens[len(sequence.context) :]
                if self.stopped_at(of_sequences[sequence], new) is not None:
                    driver.stop(sequence)
                    del unfinished[sequence]
            count.add(before - len(unfinished), tokens=sum(len(x.tokens) for x in chunks))

        if self.policy.sampling_mesh.row_shards == 1:  # else slots say which device needs which
            contexts = [tuple(x.tokens) for x in requests]
            driver.batch.prefill(weights.params, contexts, [0] * len(contexts))
        queue = sequences
        if speculation is not None and speculation.likely(layout.sizes[-1]):
            # The first response to a prompt is a draft for the others.
            numbers = [i for request in requests for i in range(len(request.keys_N))]
            queue = [sequences[i] for i in np.argsort(numbers, kind="stable")]
        driver.submit(queue, receive)
        while unfinished:
            if stop is not None and stop(np.array([x not in unfinished for x in sequences])):
                break
            driver.step()
        self.prefilled_tokens += driver.batch.prefilled_tokens
        decoder = self.policy.decoder
        driver.batch.remove(driver.batch.slots.running())  # those that `stop` left
        driver.release()
        return [
            Drawn(
                np.array(x.tokens[len(x.context) :], np.int32),
                np.array(logprobs[x], np.float32),
                x.experts(*decoder.config.record) if decoder.records else None,
                *x.alternatives_drawn(self.alternatives),
            )
            for x in sequences
        ]

    def with_drafts(
        self, params: Params, layout: Layout, kept: Kept
    ) -> tuple[Layout, Kept, Speculation | None]:
        """Returns the options of a batch, with room for drafts where they may save time."""
        mesh, drafted = self.policy.sampling_mesh, self.draft_tokens
        speculation = Speculation(
            drafted,
            length=layout.most,
            slots=max(layout.sizes),
            shards=mesh.size // mesh.devices_per_row,
            parameter_tokens=parameter_tokens(mesh.platform, params),
            counts=self.counts,
        )
        if not any(map(speculation.likely, layout.sizes)):
            return layout, kept, None
        return replace(layout, most=layout.most + drafted), kept, speculation

    def sequences(self, request: Request, sampling: Sampling | None) -> list[TokenSequence]:
        """Returns the sequences of a request, one for each key."""
        least = 0 if sampling is None else sampling.least_tokens
        return [
            TokenSequence(
                context=request.tokens,
                key=key,
                max_tokens=request.max_tokens,
                end_ids=self.policy.end_ids,
                drawn=request.drawn,
                sampling=sampling,
                min_tokens=max(0, least - request.drawn),
                keep=request.keep,
                likely=[] if self.alternatives and sampling is None else None,
            )
            for key in request.keys_N
        ]

    def stream(self, source: RequestSource, *, greedy: bool = False) -> None:
        """Completes the requests of a source (`Streams`).

        The cache of a completion with `Request.keep` is kept until another request continues it,
        or a request says that none will (`Request.ended`).
        There are no drafts: what runs together depends on time, and so would their digits.
        """
        params, version, kept = self.weights
        longest = self.policy.decoder.config.max_positions
        driver = Driver(
            *(self.policy, params, str(version), self.stream_layout(source)),
            call_steps=CallSteps(BETWEEN_REQUESTS),
            distribution=self.distribution(version, greedy, ()),
            kept=kept,
            reuses=True,
        )
        driver.batch.slots = Slots(driver.batch.layout.sizes[-1])
        logprobs: dict[TokenSequence, list[float]] = {}

        def receive(request: Request, chunks: list[Chunk]) -> None:
            ((sequence, _, new_logprobs, _, ending, _),) = chunks
            logprobs[sequence] += new_logprobs
            if ending is not None:
                drawn = sequence.tokens[len(sequence.context) :]
                source.give(request, completion(drawn, logprobs.pop(sequence), version, ending))

        while True:
            for request in source.take(wait=not driver.submissions):
                check_request(request.tokens, len(request.keys_N), request.max_tokens, longest)
                for tokens in request.ended:
                    kept.pop(tokens, None)
                (sequence,) = self.sequences(request, None)
                logprobs[sequence] = []
                driver.submit([sequence], partial(receive, request))
            if not driver.submissions:
                break
            before = driver.counters["tokens"]
            driver.step()
            if (count := newest("rollout")) is not None:  # of episodes
                count.add(tokens=driver.counters["tokens"] - before)
        kept.clear()
        self.prefilled_tokens += driver.batch.prefilled_tokens
        self.stream_columns = driver.batch.columns
        driver.release()

    def stream_layout(self, source: RequestSource) -> Layout:
        """Returns the sizes of a batch of sequences whose contexts begin in column 0.

        It begins with as many columns as the last stream ended with: few sizes need few
        compilations.
        """
        shards = self.policy.sampling_mesh.row_shards
        most = min(self.slots or source.most, source.most)
        sizes = {-(-min(size, most) // shards) * shards for size in (8, 32, 128, 512, most)}
        longest = min(source.longest, self.policy.decoder.config.max_positions)
        return Layout(
            sizes=sorted(sizes),
            most=padded_width(longest),
            prefill_rows=8,
            few_tokens=few_tokens(self.policy),
            patience=8,
            doubles=True,
            least=self.stream_columns,
        )

    def layout(self, requests: Sequence[Request], *, stops: bool) -> Layout:
        """Returns the sizes of a batch: contexts end in one column, as in a static batch.

        Args:
          stops: whether the call may be stopped. Later calls then go on with as many sequences as
            happen to be unfinished, so that numbers are powers of two: few sizes need few
            compilations.
        """
        P, B = len(requests), sum(len(request.keys_N) for request in requests)
        R = max(request.max_tokens for request in requests)
        if stops:
            P, B = (1 << (count - 1).bit_length() for count in (P, B))
            R = max(R, self.max_response_tokens)
        width = padded_width(max(len(request.tokens) for request in requests))
        shards = self.policy.sampling_mesh.row_shards
        sizes = slot_counts(min(self.slots or B, B), shards, R)
        different = len({tuple(request.tokens) for request in requests})
        return Layout(
            sizes=sizes[::-1],
            begin=width,
            most=width + R,
            prefill_rows=P,
            # Two parts of attention that are joined would be another order of sums.
            shares=not self.policy.decoder.exact and shares_prompts(width, different, B, sizes[0]),
        )


def completion(tokens: Any, logprobs: Any, version: int, ended: Finish) -> Completion:
    """Returns tokens that one weight version drew."""
    return Completion(
        tokens=np.asarray(tokens, np.int32),
        logprobs=np.asarray(logprobs, np.float32),
        versions=np.full(len(tokens), version, np.int32),
        finish=ended,
    )
