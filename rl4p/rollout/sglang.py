"""Sampling by SGLang servers, which receive the weights of the run.

Written by SGLang's documentation of mid-2026; what a server offers is found out by asking.
docs/sglang.md has the flags that a server needs.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rl4p.rollout.remote.fleet import Weights
from rl4p.rollout.remote.read import Answer, Ask, LieError, checked, field, number
from rl4p.rollout.remote.sampler import SyncedSampler
from rl4p.rollout.remote.server import Deadline, FailedError, RefusedError, Server, pause


@dataclass(frozen=True, kw_only=True)
class SGLang(SyncedSampler):
    """A rollout by SGLang servers, with tokens and log-probabilities both ways (docs/sglang.md).

    top_k and top_p are refused: the log-probabilities of SGLang are those of the whole vocabulary,
    not of the tokens that may be drawn, so the trainer would weigh tokens wrongly.
    """

    seed_bits: ClassVar[int] = 31

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top_k or self.top_p < 1:
            raise ValueError(
                "top_k and top_p cannot be used with rollout=sglang, whose log-probabilities are "
                "those of the whole vocabulary: leave both out, or choose rollout=vllm."
            )

    async def complete(self, server: Server, ask: Ask, id: str, label: str) -> Answer:
        body = {
            "rid": id,
            "input_ids": list(ask.tokens),
            "sampling_params": {
                "n": 1,
                "temperature": ask.temperature,
                "top_p": 1.0,
                "top_k": -1,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
                "max_new_tokens": ask.max_tokens,
                "sampling_seed": ask.seed,
                "stop_token_ids": list(ask.end_ids),
                "skip_special_tokens": False,
            },
            "return_logprob": True,
            "logprob_start_len": -1,
            "stream": False,
        }
        found = await server.ask("POST", "/generate", body, seconds=self.timeout_seconds)
        meta = field(found, "meta_info")
        if meta.get("prompt_tokens", len(ask.tokens)) != len(ask.tokens):
            raise LieError(f"it read {meta['prompt_tokens']} tokens of {len(ask.tokens)}")
        triples = field(meta, "output_token_logprobs")
        if not isinstance(triples, list):
            raise LieError("output_token_logprobs is no list")
        tokens = field(found, "output_ids")
        if tokens != [field(triple, 1) for triple in triples]:
            raise LieError("output_ids and output_token_logprobs have different tokens")
        return checked(
            ask,
            tokens,
            [field(triple, 0) for triple in triples],
            field(meta, "finish_reason", "type"),
            versions=[meta["weight_version"]] if "weight_version" in meta else (),
            label=label,
        )

    async def abort(self, server: Server, ids: Sequence[str]) -> None:
        for id in ids:
            await server.ask("POST", "/abort_request", {"rid": id}, seconds=30.0)

    async def update(self, server: Server, weights: Weights, deadline: Deadline) -> None:
        async def ask(path: str, body: Any) -> Any:
            found = await server.ask("POST", path, body, seconds=deadline.left)
            if isinstance(found, dict) and found.get("success", True) is not True:
                message = server.public(str(found.get("message", "")))
                raise FailedError(f"{path} did not succeed: {message or found}")
            return found

        if weights.exported is None:
            return
        await ask("/pause_generation", {"mode": "abort"})
        found = await ask(
            "/update_weights_from_disk",
            {
                "model_path": str(weights.exported.path),
                "weight_version": weights.label,
                "flush_cache": True,
                "abort_all_requests": True,
            },
        )
        if not isinstance(found, dict) or "success" not in found:
            raise LieError("it does not say whether it has loaded the weights")
        await self.flush(server, deadline)
        await self.verify(server, weights, deadline)
        await ask("/continue_generation", {})

    async def flush(self, server: Server, deadline: Deadline) -> None:
        """Empties the cache, which a server refuses while requests run."""
        failures = 0
        while True:
            try:
                await server.ask("POST", "/flush_cache", seconds=deadline.left)
                return
            except RefusedError as error:
                if error.status != 400 or deadline.over:
                    raise
            failures += 1
            await asyncio.sleep(pause(failures))

    async def verify(self, server: Server, weights: Weights, deadline: Deadline) -> None:
        """Compares the version and the checksums that a server reports."""
        for path in ("/model_info", "/get_weight_version"):
            offered, found = await server.offered("GET", path, seconds=deadline.left)
            if not offered or not isinstance(found, dict) or "weight_version" not in found:
                continue
            if (version := found["weight_version"]) != weights.label:
                raise LieError(
                    f"it reports the weights {version!r} after an update to {weights.label}"
                )
            break
        await self.check_checksums(server, "/weights_checker", weights, deadline)

    async def score(
        self, server: Server, tokens: Sequence[int], deadline: Deadline
    ) -> list[float | None]:
        body = {
            "input_ids": list(tokens),
            "sampling_params": {"temperature": 1.0, "max_new_tokens": 1},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        found = await server.ask("POST", "/generate", body, seconds=deadline.left)
        triples = field(found, "meta_info", "input_token_logprobs")
        if not isinstance(triples, list):
            raise LieError("it did not return the log-probabilities of a prompt")
        if [field(triple, 1) for triple in triples] != list(tokens):
            raise LieError("it returned the log-probabilities of another prompt")
        return [number(field(triple, 0)) for triple in triples[1:]]
