"""The fast sampler: continuous batching, where waiting sequences take the slots of ended ones."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
from annotated_types import Le

from rl4p.base.errors import InputError
from rl4p.base.types import Sampling
from rl4p.configuration.bounds import Natural, Positive
from rl4p.distributed.placement import with_shardings
from rl4p.engine.cache import cache_shardings, place, prefill, resized_layer
from rl4p.engine.decode import SharedDistribution, decode
from rl4p.engine.in_process import ContinuousEngine, RowOptions
from rl4p.engine.layout import response_room, shares_prompts, slot_counts
from rl4p.engine.prompts import few, without_states
from rl4p.engine.sequence import Slots
from rl4p.engine.speculation import MOST_DRAFTED, Counts
from rl4p.model.cache import KVCacheDtype
from rl4p.model.policy import Policy
from rl4p.model.prompt_cache import PromptCache
from rl4p.protocols.traits import CacheSize, PlannedProgram
from rl4p.rollout.sampler import Sampler

MOST_REPLAYED = 256  # tokens of a recorded support


@dataclass(frozen=True, kw_only=True)
class Continuous(Sampler):
    """A sampler that draws the same tokens as `naive_sampler` by continuous batching.

    Each prompt is prefilled once for its group, on each device that has slots of the group. The
    samples of a group also share the cache of a long prompt while they are decoded. Device calls
    decode a few tokens of every slot. Between calls, waiting sequences take the slots
    of ended sequences. Once no sequence waits, the number of slots is halved as sequences end. The
    cache grows in a few steps with the longest response, because attention computes over its whole
    size, used or not.

    Attributes:
      slots: the number of sequences decoded at a time. None decodes all sequences of a step at
        once, which is fastest if their cache fits into memory.
      draft_tokens: the most tokens that a decode step reads ahead of the next one (speculative
        decoding). 0 is off. The same tokens are drawn, up to rounding. A draft is what followed the
        sequence's last tokens earlier, in its own text or in a response to the same prompt. Drafts
        are used where they are estimated to pay: for few sequences, so that a step takes little
        longer, and if they are often right. While a sequence has a penalty or fewer than
        `least_tokens`, no sequence has drafts. There are none in episodes and in `rl4p.serve`.
      replay_experts: whether the trainer uses the experts that the sampler chose for each token,
        with the weights of its own router (rollout routing replay, 2510.11370). The policy that
        drew the tokens then differs by rounding alone. A token that was sampled earlier and
        continued later keeps the experts that drew it. The reference, a teacher and a separate
        critic choose their own.
      kv_cache_dtype: the dtype of the keys and values that decoding reads: `auto`, that of
        activations, or `int8` with a scale for each token and KV head
        (`cache.QuantizedKeysValues`). It halves the cache of a policy in bfloat16. The policy that
        draws the tokens then differs from the trainer's by this rounding, which
        `rollout/logprob_gap_mean` shows and `correction` corrects.
      dtype: the dtype of the weights and activations that sample: `auto`, that of the model, or
        `bfloat16`, which needs half the memory beside a trainer in float32. It is another policy by
        its rounding too.
      alternatives: how many of the most probable tokens are recorded with each drawn token, for
        `update=score_centering`.
      replay_support: whether the trainer normalises log-probabilities over the tokens S that
        `top_k`, `top_p` and `min_p` left to the sampler (Keep Sampling Mask of DeepSeek-V3.2,
        2512.02556), and not over those that they would leave of its own logits z:

            log pi(y) = z_y / T - log sum_{v in S} exp(z_v / T)

        Log-probabilities of the reference and of a teacher are normalised in the same way. `top_k`
        bounds S, of which all tokens are recorded. If more than `top_k` tokens are the most
        probable ones, with equal logits, the last ones cannot be drawn. A token that no policy drew
        has no S: its log-probability is normalised over the whole vocabulary.
    """

    slots: Positive | None = None
    draft_tokens: Annotated[Natural, Le(MOST_DRAFTED)] = 0
    replay_experts: bool = False
    kv_cache_dtype: KVCacheDtype = "auto"
    dtype: Literal["auto", "bfloat16"] = "auto"
    alternatives: Natural = 0
    replay_support: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("repetition_penalty", "presence_penalty"):
            if self.draft_tokens and getattr(self, name) != getattr(Sampling(), name):
                raise ValueError(
                    f"draft_tokens has no effect with {name}, whose tokens are drawn one by one: "
                    "leave one of them out."
                )
        for name in ("alternatives", "replay_support"):
            if (value := getattr(self, name)) and self.draft_tokens:
                raise ValueError(
                    f"{name}={str(value).lower()} records no tokens that were drafted: set "
                    "draft_tokens=0."
                )
        if self.replay_support and self.alternatives:
            raise ValueError(
                f"replay_support=true and alternatives={self.alternatives} do not go together: "
                "leave one of them out."
            )
        if self.replay_support and not 1 < self.top_k <= MOST_REPLAYED:
            raise ValueError(
                f"replay_support=true cannot act with top_k={self.top_k}, because it records the "
                f"tokens that top_k leaves, from 2 to {MOST_REPLAYED}: set top_k to one of these "
                "numbers, or leave replay_support out."
            )

    def options(self, task: str) -> RowOptions:
        own = super().options(task)
        return replace(own, sampling=replace(own.sampling, replay_support=self.replay_support))

    @property
    def recorded(self) -> int:
        """The number of tokens that are recorded with each drawn token."""
        return self.top_k if self.replay_support else self.alternatives

    @cached_property
    def counts(self) -> Counts:
        """The counts of the engine that was opened last."""
        return Counts()

    def open(self, policy: Policy) -> ContinuousEngine:
        self.counts.clear()
        if self.draft_tokens and policy.decoder.config.has_state:
            raise InputError(
                f"rollout.draft_tokens={self.draft_tokens} is not possible, because the model has "
                "layers with a state, which a rejected token cannot leave: set it to 0."
            )
        return ContinuousEngine(
            self.with_caches(policy),
            self.options,
            self.temperature_at,
            slots=self.slots,
            max_response_tokens=self.max_response_tokens,
            draft_tokens=self.draft_tokens,
            counts=self.counts,
            alternatives=self.recorded,
        )

    def with_caches(self, policy: Policy) -> Policy:
        """Returns the policy with the caches of this sampler.

        They are in its dtype, and record the experts if the trainer replays them.
        """
        policy = policy.with_kv_cache(self.kv_cache_dtype)
        if self.dtype != "auto":
            if policy.decoder.exact:
                raise InputError(
                    f"rollout.dtype={self.dtype} rounds what model.exact=true keeps in every "
                    "digit: leave it out."
                )
            policy = replace(policy, decoder=replace(policy.decoder, dtype=self.dtype))
        if not self.replay_experts:
            return policy
        if not policy.decoder.config.experts:
            raise InputError(
                "rollout.replay_experts=true has no effect, because the model has no experts: "
                "leave it out."
            )
        if self.draft_tokens:
            raise InputError(
                f"rollout.replay_experts=true records no tokens that were drafted: set "
                f"rollout.draft_tokens=0, not {self.draft_tokens}."
            )
        return replace(policy, decoder=replace(policy.decoder, records=True))

    def metrics(self) -> dict[str, float]:
        """Returns the metrics of the engine that was opened last, if tokens may be drafted."""
        return self.counts.metrics() if self.draft_tokens else {}

    def plan(self, run: Any) -> Generator[PlannedProgram, Any, None]:
        """Yields `prefill`, `arrange` and `decode`, with the largest cache that may occur.

        `decode` is planned without drafts, which serve few sequences.
        """
        policy, mesh = self.with_caches(run.policy), run.policy.sampling_mesh
        params = run.sampling_params()
        P, W, B, R = run.prompts, run.prompt_columns, run.sequences, run.response_tokens
        room = R + self.draft_tokens
        resident = run.resident_while_sampling()
        P += -P % mesh.row_shards
        counts_P = run.rows((P,), jnp.int32, mesh)
        tokens_PT = run.rows((P, W), jnp.int32, mesh)
        decoder = policy.decoder
        traced = prefill.trace(decoder, params, tokens_PT, counts_P, counts_P, mesh)
        prefilled = yield PlannedProgram(phase="prefill", traced=traced, live=resident)
        if prefilled is None:  # the other programs need it
            return

        n = slot_counts(self.slots_of(B), mesh.row_shards, R)[0]
        shares = shares_prompts(W, run.prompts, B, n)
        begin = 0 if shares else W  # the columns of prompts in the cache of the slots

        def cache_of(columns: int) -> Any:
            row_n: Any = jax.ShapeDtypeStruct((n,), jnp.int32)
            cache = jax.eval_shape(lambda x, row_n: x.rows(row_n, columns), prefilled, row_n)
            return with_shardings(cache, cache_shardings(cache, mesh))

        row_n = run.rows((n,), jnp.int32, mesh)
        cache, before = cache_of(begin + room), response_room(room // 2, room)
        if before < room:  # the cache grows, one layer after another: the last is here twice
            smaller = cache_of(begin + before)
            layer = replace(smaller, layers=smaller.layers[:1])
            traced = resized_layer.trace(layer, row_n, begin + room, mesh)
            live = (resident, prefilled, layer, cache.layers[1:])
            read = run.bytes_of((smaller, cache))
        else:
            traced = place.trace(None, prefilled, row_n, begin + room, mesh, states=shares)
            live, read = (resident, prefilled), None
        yield PlannedProgram(phase="arrange", traced=traced, live=live, read=read)

        prompts, of_prompts, beside = None, (), prefilled
        if shares:
            rows = P if n >= B else min(P, n + -n % mesh.row_shards)
            of_prompts = without_states(prefilled)
            if rows < P or n < B:  # copies, beside the prompts that wait
                row_P: Any = jax.ShapeDtypeStruct((rows,), jnp.int32)
                copies = jax.eval_shape(lambda x, row_P: x.rows(row_P, W), of_prompts, row_P)
                of_prompts = with_shardings(copies, cache_shardings(copies, mesh))
            else:
                beside = ()
            places = (rows, few(run.group_size)), (n,)
            prompts = PromptCache(of_prompts, *(run.rows(x, jnp.int32, mesh) for x in places))
        slots = Slots(n)
        state, constants = jax.tree.map(
            lambda x: run.rows(x.shape, x.dtype, mesh), (slots.state, slots.constants)
        )
        traced = decode.trace(
            decoder,
            params,
            cache,
            state,
            constants,
            SharedDistribution(sampling=self.sampling, greedy=False, alternatives=self.recorded),
            0,
            0,
            prompts=prompts,
            extras=False,
            mesh=mesh,
        )
        iterations = R * -(-B // n)
        # A step reads the written part of the cache: on average, half of the response columns.
        written = (begin + R / 2) / (begin + R)
        weights = run.bytes_per_decode_step(params)
        caches = run.bytes_of(cache.layers) * written + run.bytes_of(of_prompts)
        yield PlannedProgram(
            phase="decode",
            traced=traced,
            live=(resident, beside, prompts, cache, state, constants),
            iterations=iterations,
            read=iterations * (weights + caches),
        )

    def caches(self, run: Any) -> Sequence[CacheSize]:
        """Returns the prefilled prompts, those that slots share, and the largest cache."""
        W, R, shards = run.prompt_columns, run.response_tokens, run.policy.sampling_mesh.row_shards
        n = slot_counts(self.slots_of(run.sequences), shards, R)[0]
        size = partial(CacheSize, kv_cache_dtype=self.kv_cache_dtype)
        own, prompts = R + self.draft_tokens, size(rows=run.prompts, columns=W)
        if not shares_prompts(W, run.prompts, run.sequences, n):
            return prompts, size(rows=n, columns=W + own)
        shared = size(rows=min(run.prompts, n), columns=W, shared=True)
        slots = size(rows=n, columns=own)
        return (shared, slots) if n >= run.sequences else (prompts, shared, slots)

    def slots_of(self, sequences: int) -> int:
        """Returns how many of a step's sequences are decoded at a time."""
        return min(self.slots or sequences, sequences)
