"""Sampling by vLLM servers, which receive the weights of the run.

Read with the source of vLLM 0.33; a server is asked what it offers. docs/serving.md has the
flags that a server needs.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl4p.base.errors import InputError
from rl4p.base.http import InvalidResponseError, RefusedError, RequestError
from rl4p.engine.remote.engine import WeightTransfer
from rl4p.engine.remote.protocol import (
    Deadline,
    NewWeights,
    RemoteServer,
    ServerRequest,
    WeightsProtocol,
    check_checksums,
    checked,
    number,
    only_choice,
    value_at,
)
from rl4p.engine.remote.weights import Exported, WeightsFolder
from rl4p.model.policy import Policy
from rl4p.protocols.engine import Completion
from rl4p.rollout.remote_sampler import SyncedSampler

DEVELOPMENT = "start it with VLLM_SERVER_DEV_MODE=1"
LORA = "start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora and --max-lora-rank"


@dataclass(frozen=True, kw_only=True)
class VLLM(SyncedSampler):
    """A rollout by vLLM servers, with tokens and log-probabilities both ways (docs/serving.md).

    With top_k, top_p or a temperature other than 1 the servers need
    ``--logprobs-mode processed_logprobs``, so that log-probabilities belong to the distribution
    that tokens are drawn from; a server without it is refused.

    Attributes:
      model: the name of the model at the servers; None for the first that they list.
      adapters: whether the adapters are sent alone, and not merged into the weights. Each version
        has a name of its own, which a request asks for as its model, and a response repeats. The
        servers need the base model, and ``--enable-lora``.
    """

    model: str | None = None
    adapters: bool = False

    def protocol(self) -> "VLLMProtocol":
        whole = not self.top_k and self.top_p == 1 and self.annealing is None
        raw = whole and self.temperature in (0, 1)
        return VLLMProtocol(self.model, raw_logprobs=raw, adapters=self.adapters)

    def folder(self, parent: Path, **options: Any) -> WeightsFolder:
        own = {"repeats_head": not self.adapters, "adapters": self.adapters}
        return super().folder(parent, **own, **options)

    def transfer(self, policy: Policy) -> WeightTransfer:
        if self.adapters and not policy.decoder.lora.rank:
            raise InputError(
                "rollout.adapters=true sends adapters, but the model has none: set "
                "model.lora.rank, or leave rollout.adapters out."
            )
        return super().transfer(policy)


class VLLMProtocol(WeightsProtocol):
    """The HTTP protocol of vLLM.

    Args:
      model: the name of the model at the servers; None for the first that they list.
      raw_logprobs: whether tokens are drawn from the distribution of raw log-probabilities, so that
        a server may return these.
      adapters: whether the weights are adapters of the model that a server has.
    """

    def __init__(
        self, model: str | None, *, raw_logprobs: bool = False, adapters: bool = False
    ) -> None:
        self.model, self.raw_logprobs, self.adapters = model, raw_logprobs, adapters

    async def check(self, server: RemoteServer, deadline: Deadline) -> None:
        await super().check(server, deadline)
        if self.model is None:
            models = await server.send("GET", "/v1/models", seconds=deadline.left)
            server.features["model"] = value_at(models, "data", 0, "id")
        offered, state = await server.offered("GET", "/is_sleeping", seconds=deadline.left)
        if offered and isinstance(state, dict):  # also of a run that was killed
            server.asleep = state.get("is_sleeping") is True

    async def complete(
        self, server: RemoteServer, request: ServerRequest, id: str, *, seconds: float
    ) -> Completion:
        body = self.body(server, request)
        response = await server.send("POST", "/v1/completions", body, seconds=seconds)
        if self.adapters and (name := value_at(response, "model")) != request.label:
            raise InvalidResponseError(
                f"tokens of {name!r}, but the current adapters are {request.label!r}"
            )
        choice = only_choice(response)
        prompt = choice.get("prompt_token_ids") if isinstance(choice, dict) else None
        if prompt is not None and prompt != list(request.tokens):
            raise InvalidResponseError("it continued another prompt")
        spans = choice.get("weight_versions") if isinstance(choice, dict) else None
        tokens = value_at(choice, "token_ids")
        logprobs = value_at(choice, "logprobs", "token_logprobs") if tokens else []
        return checked(
            request,
            server.url,
            tokens,
            logprobs,
            value_at(choice, "finish_reason"),
            versions=[value_at(span, "version") for span in spans or ()],
        )

    def body(self, server: RemoteServer, request: ServerRequest) -> dict[str, Any]:
        """Returns the body of a request for one completion."""
        return {
            "model": server.features.get("adapters") or self.model or server.features["model"],
            "prompt": list(request.tokens),
            "n": 1,
            "max_tokens": request.max_tokens,
            "temperature": request.sampling.temperature,
            "top_p": request.sampling.top_p,
            "top_k": request.sampling.top_k or -1,
            "min_p": 0.0,  # else the value in the model's generation_config.json
            "repetition_penalty": 1.0,
            "seed": request.seed,
            "stop_token_ids": list(request.end_ids),
            "logprobs": 0,
            "return_token_ids": True,
            "return_weight_versions": True,
            "skip_special_tokens": False,
            "add_special_tokens": False,
            "stream": False,
        }

    async def abort(self, server: RemoteServer, ids: Sequence[str]) -> None:
        """Ends all requests of the server, which has no other way that returns their tokens."""
        await server.send("POST", "/pause?mode=abort", seconds=30.0)
        await server.send("POST", "/resume", seconds=30.0)

    async def load(self, server: RemoteServer, weights: NewWeights, deadline: Deadline) -> None:
        try:
            path = "/pause?mode=abort&clear_cache=true"
            await server.send("POST", path, seconds=deadline.left)
        except RefusedError as error:
            raise RefusedError(f"{error} ({DEVELOPMENT})", error.status) from None
        if self.adapters:
            await self.load_adapters(server, weights, deadline)
            await server.send("POST", "/resume", seconds=deadline.left)
            await self.check_logprobs(server, deadline)
            return
        if await self.transfers_from_disk(server, deadline):
            start = "/start_weight_update", {"is_checkpoint_format": True}
            try:
                await server.send("POST", *start, seconds=deadline.left)
            except RequestError as error:  # an update that was cut short is still open
                if not error.transient:
                    raise
                await server.send("POST", "/finish_weight_update", {}, seconds=deadline.left)
                await server.send("POST", *start, seconds=deadline.left)
            body = {"update_info": {"path": str(weights.exported.path)}}
            await server.send("POST", "/update_weights", body, seconds=deadline.left)
            body = {"weight_version": weights.label}
            await server.send("POST", "/finish_weight_update", body, seconds=deadline.left)
        else:  # the server reloads its model from the folder of the weights
            await self.reload(server, weights.exported, deadline)
            body = {"new_version": weights.label}
            await server.offered("POST", "/update_weight_version", body, seconds=deadline.left)
        _, reset = await server.offered("POST", "/reset_prefix_cache", seconds=deadline.left)
        if isinstance(reset, dict) and reset.get("success", True) is not True:
            raise RequestError("it did not empty its prefix cache")
        # The version and the checksums that it reports must be those of the new weights.
        offered, info = await server.offered("GET", "/weight_info", seconds=deadline.left)
        if offered and (version := value_at(info, "weight_version")) != weights.label:
            raise InvalidResponseError(
                f"it reports the weights {version!r} after an update to {weights.label}"
            )
        await check_checksums(server, "/weight_checker", weights, deadline)
        await server.send("POST", "/resume", seconds=deadline.left)
        await self.check_logprobs(server, deadline)

    async def load_adapters(
        self, server: RemoteServer, weights: NewWeights, deadline: Deadline
    ) -> None:
        """Makes a server load adapters under their label, and forget the ones before."""
        path, body = "/v1/unload_lora_adapter", {"lora_name": server.features.get("adapters")}
        if body["lora_name"] is not None:
            with suppress(RefusedError):  # by a server that was started again
                await server.send("POST", path, body, seconds=deadline.left)
        body = {"lora_name": weights.label, "lora_path": str(weights.exported.path)}
        try:
            await server.send("POST", "/v1/load_lora_adapter", body, seconds=deadline.left)
        except RefusedError as error:
            raise RefusedError(f"{error} ({LORA})", error.status) from None
        server.features["adapters"] = weights.label

    async def reload(self, server: RemoteServer, exported: Exported, deadline: Deadline) -> None:
        """Makes a server reload its model from a folder, and then the head of tied embeddings.

        vLLM 0.32 multiplies by a packed copy of the head on a CPU. With tied embeddings it packs
        the embedding anew, but the head only if the files have one.
        """

        async def from_folder(folder: Path) -> None:
            body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
            offered, _ = await server.offered(
                "POST", "/collective_rpc", body, seconds=deadline.left
            )
            if not offered:
                raise RefusedError(f"it offers no way to load weights ({DEVELOPMENT})", 404)

        await from_folder(exported.path)
        if exported.head is None or not server.features.get("head", True):
            return
        try:
            await from_folder(exported.head)
        except RequestError as error:  # a model of vLLM that has no head beside its embedding
            if not isinstance(error, RefusedError) and "HTTP 5" not in str(error):
                raise
            await from_folder(exported.path)
            server.features["head"] = False

    async def sleep(self, server: RemoteServer, deadline: Deadline) -> None:
        try:
            await server.send("POST", "/sleep?level=2", seconds=deadline.left)
        except RefusedError as error:
            hint = f"{DEVELOPMENT} and --enable-sleep-mode"
            raise RefusedError(f"{error} ({hint})", error.status) from None

    async def wake(self, server: RemoteServer, deadline: Deadline) -> None:
        await server.send("POST", "/wake_up", seconds=deadline.left)

    async def transfers_from_disk(self, server: RemoteServer, deadline: Deadline) -> bool:
        """Returns whether the server was started with a transfer of weights from disk."""
        if "disk" not in server.features:
            body = {"init_info": {}}
            try:
                server.features["disk"], _ = await server.offered(
                    "POST", "/init_weight_transfer_engine", body, seconds=deadline.left
                )
            except RefusedError:  # of a server with another kind of transfer
                server.features["disk"] = False
            except RequestError as error:  # or without any: vLLM 0.33 then answers with 500
                if "HTTP 5" not in str(error):
                    raise
                offered, _ = await server.offered("GET", "/server_info", seconds=deadline.left)
                if not offered:
                    raise
                server.features["disk"] = False
        return server.features["disk"]

    async def check_logprobs(self, server: RemoteServer, deadline: Deadline) -> None:
        """Checks that log-probabilities describe the distribution that tokens are drawn from.

        The only token that top_k=1 leaves then has the log-probability 0.
        """
        if self.raw_logprobs:
            return
        body = self.body(server, ServerRequest(tokens=[0])) | {"top_k": 1, "temperature": 1.0}
        response = await server.send("POST", "/v1/completions", body, seconds=deadline.left)
        logprob = value_at(only_choice(response), "logprobs", "token_logprobs", 0)
        if not isinstance(logprob, float | int) or abs(logprob) > 1e-4:
            raise InvalidResponseError(
                "its log-probabilities do not describe the distribution that it draws from: start "
                "it with --logprobs-mode processed_logprobs"
            )

    async def score(
        self, server: RemoteServer, tokens: Sequence[int], deadline: Deadline
    ) -> list[float | None]:
        request = ServerRequest(tokens=tokens, max_tokens=server.features.get("least_tokens", 1))
        body = self.body(server, request) | {"prompt_logprobs": 0}
        response = await server.send("POST", "/v1/completions", body, seconds=deadline.left)
        by_token = value_at(only_choice(response), "prompt_logprobs")
        if not isinstance(by_token, list) or len(by_token) != len(tokens):
            raise InvalidResponseError("it did not return the log-probabilities of a prompt")
        pairs = zip(tokens[1:], by_token[1:], strict=True)
        return [number(value_at(logprobs, str(token), "logprob")) for token, logprobs in pairs]
