"""Sampling by SGLang servers, which receive the weights of the run.

Written by SGLang's documentation of mid-2026; a server is asked what it offers.
docs/serving.md has the flags that a server needs.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rl4p.base.http import InvalidResponseError, RefusedError, RequestError
from rl4p.engine.remote.protocol import (
    Deadline,
    NewWeights,
    RemoteServer,
    ServerRequest,
    WeightsProtocol,
    check_checksums,
    checked,
    number,
    short_pause,
    value_at,
)
from rl4p.protocols.engine import Completion
from rl4p.rollout.remote_sampler import SyncedSampler


@dataclass(frozen=True, kw_only=True)
class SGLang(SyncedSampler):
    """A rollout by SGLang servers, with tokens and log-probabilities both ways (docs/serving.md).

    top_k and top_p are refused: the log-probabilities of SGLang are those of the whole vocabulary,
    not of the tokens that may be drawn, so the trainer would weigh tokens wrongly.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top_k or self.top_p < 1:
            raise ValueError(
                "top_k and top_p cannot be used with rollout=sglang, whose log-probabilities are "
                "those of the whole vocabulary: leave both out, or choose rollout=vllm."
            )

    def protocol(self) -> "SGLangProtocol":
        return SGLangProtocol()


class SGLangProtocol(WeightsProtocol):
    """The HTTP protocol of SGLang."""

    seed_bits: ClassVar[int] = 31

    async def complete(
        self, server: RemoteServer, request: ServerRequest, id: str, *, seconds: float
    ) -> Completion:
        body = {
            "rid": id,
            "input_ids": list(request.tokens),
            "sampling_params": {
                "n": 1,
                "temperature": request.sampling.temperature,
                "top_p": 1.0,
                "top_k": -1,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
                "max_new_tokens": request.max_tokens,
                "sampling_seed": request.seed,
                "stop_token_ids": list(request.end_ids),
                "skip_special_tokens": False,
            },
            "return_logprob": True,
            "logprob_start_len": -1,
            "stream": False,
        }
        response = await server.send("POST", "/generate", body, seconds=seconds)
        meta = value_at(response, "meta_info")
        if meta.get("prompt_tokens", len(request.tokens)) != len(request.tokens):
            raise InvalidResponseError(
                f"it read {meta['prompt_tokens']} tokens of {len(request.tokens)}"
            )
        triples = value_at(meta, "output_token_logprobs")
        if not isinstance(triples, list):
            raise InvalidResponseError("output_token_logprobs is no list")
        tokens = value_at(response, "output_ids")
        if tokens != [value_at(triple, 1) for triple in triples]:
            raise InvalidResponseError("output_ids and output_token_logprobs have different tokens")
        return checked(
            request,
            server.url,
            tokens,
            [value_at(triple, 0) for triple in triples],
            value_at(meta, "finish_reason", "type"),
            versions=[meta["weight_version"]] if "weight_version" in meta else (),
        )

    async def abort(self, server: RemoteServer, ids: Sequence[str]) -> None:
        for id in ids:
            await server.send("POST", "/abort_request", {"rid": id}, seconds=30.0)

    async def load(self, server: RemoteServer, weights: NewWeights, deadline: Deadline) -> None:
        async def post(path: str, body: Any) -> Any:
            response = await server.send("POST", path, body, seconds=deadline.left)
            if isinstance(response, dict) and response.get("success", True) is not True:
                message = server.client.without_key(str(response.get("message", "")))
                raise RequestError(f"{path} did not succeed: {message or response}")
            return response

        await post("/pause_generation", {"mode": "abort"})
        body = {
            "model_path": str(weights.exported.path),
            "weight_version": weights.label,
            "flush_cache": True,
            "abort_all_requests": True,
        }
        response = await post("/update_weights_from_disk", body)
        if not isinstance(response, dict) or "success" not in response:
            raise InvalidResponseError("it does not say whether it has loaded the weights")
        failures = 0
        while True:  # a server refuses to empty its cache while requests run
            try:
                await server.send("POST", "/flush_cache", seconds=deadline.left)
                break
            except RefusedError as error:
                if error.status != 400 or deadline.over:
                    raise
            failures += 1
            await asyncio.sleep(short_pause(failures))
        # The version and the checksums that it reports must be those of the new weights.
        for path in ("/model_info", "/get_weight_version"):
            offered, info = await server.offered("GET", path, seconds=deadline.left)
            if not offered or not isinstance(info, dict) or "weight_version" not in info:
                continue
            if (version := info["weight_version"]) != weights.label:
                raise InvalidResponseError(
                    f"it reports the weights {version!r} after an update to {weights.label}"
                )
            break
        await check_checksums(server, "/weights_checker", weights, deadline)
        await post("/continue_generation", {})

    async def sleep(self, server: RemoteServer, deadline: Deadline) -> None:
        try:
            await server.send("POST", "/release_memory_occupation", {}, seconds=deadline.left)
        except RefusedError as error:
            hint = "start it with --enable-memory-saver"
            raise RefusedError(f"{error} ({hint})", error.status) from None

    async def wake(self, server: RemoteServer, deadline: Deadline) -> None:
        await server.send("POST", "/resume_memory_occupation", {}, seconds=deadline.left)

    async def score(
        self, server: RemoteServer, tokens: Sequence[int], deadline: Deadline
    ) -> list[float | None]:
        drawn = server.features.get("least_tokens", 1)
        body = {
            "input_ids": list(tokens),
            "sampling_params": {"temperature": 1.0, "max_new_tokens": drawn},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        response = await server.send("POST", "/generate", body, seconds=deadline.left)
        triples = value_at(response, "meta_info", "input_token_logprobs")
        if not isinstance(triples, list):
            raise InvalidResponseError("it did not return the log-probabilities of a prompt")
        if [value_at(triple, 1) for triple in triples] != list(tokens):
            raise InvalidResponseError("it returned the log-probabilities of another prompt")
        return [number(value_at(triple, 0)) for triple in triples[1:]]
