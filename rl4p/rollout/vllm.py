"""Sampling by vLLM servers, which receive the weights of the run.

Read with the source of vLLM 0.33; what a server offers is found out by asking. docs/vllm.md has the
flags that a server needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rl4p.rollout.remote.fleet import Weights
from rl4p.rollout.remote.read import Answer, Ask, LieError, checked, field, number, only_choice
from rl4p.rollout.remote.sampler import SyncedSampler
from rl4p.rollout.remote.server import Deadline, FailedError, RefusedError, Server

DEVELOPMENT = "start it with VLLM_SERVER_DEV_MODE=1"


@dataclass(frozen=True, kw_only=True)
class VLLM(SyncedSampler):
    """A rollout by vLLM servers, with tokens and log-probabilities both ways (docs/vllm.md).

    With top_k, top_p or a temperature other than 1 the servers need
    ``--logprobs-mode processed_logprobs``, so that log-probabilities are those of the distribution
    that tokens are drawn from; a server without it is refused.

    Attributes:
      model: the name of the model at the servers; None for the first that they list.
    """

    model: str | None = None

    async def check_in(self, server: Server, deadline: Deadline) -> None:
        await super().check_in(server, deadline)
        if self.model is None:
            found = await server.ask("GET", "/v1/models", seconds=deadline.left)
            server.known["model"] = field(found, "data", 0, "id")

    async def complete(self, server: Server, ask: Ask, id: str, label: str) -> Answer:
        found = await server.ask(
            "POST", "/v1/completions", self.body(server, ask), seconds=self.timeout_seconds
        )
        choice = only_choice(found)
        prompt = choice.get("prompt_token_ids") if isinstance(choice, dict) else None
        if prompt is not None and prompt != list(ask.tokens):
            raise LieError("it answered another prompt")
        spans = choice.get("weight_versions") if isinstance(choice, dict) else None
        tokens = field(choice, "token_ids")
        logprobs = field(choice, "logprobs", "token_logprobs") if tokens else []
        return checked(
            ask,
            tokens,
            logprobs,
            field(choice, "finish_reason"),
            versions=[field(span, "version") for span in spans or ()],
            label=label,
        )

    def body(self, server: Server, ask: Ask) -> dict[str, Any]:
        """Returns the body of a request for one completion."""
        return {
            "model": self.model or server.known["model"],
            "prompt": list(ask.tokens),
            "n": 1,
            "max_tokens": ask.max_tokens,
            "temperature": ask.temperature,
            "top_p": ask.top_p,
            "top_k": ask.top_k or -1,
            "min_p": 0.0,  # else that of the model's generation_config.json
            "repetition_penalty": 1.0,
            "seed": ask.seed,
            "stop_token_ids": list(ask.end_ids),
            "logprobs": 0,
            "return_token_ids": True,
            "return_weight_versions": True,
            "skip_special_tokens": False,
            "add_special_tokens": False,
            "stream": False,
        }

    async def abort(self, server: Server, ids: Sequence[str]) -> None:
        """Ends all requests of the server, which has no other way that returns their tokens."""
        await server.ask("POST", "/pause?mode=abort", seconds=30.0)
        await server.ask("POST", "/resume", seconds=30.0)

    async def update(self, server: Server, weights: Weights, deadline: Deadline) -> None:
        async def ask(method: str, path: str, body: Any = None) -> Any:
            return await server.ask(method, path, body, seconds=deadline.left)

        try:
            await ask("POST", "/pause?mode=abort&clear_cache=true")
        except RefusedError as error:
            raise RefusedError(f"{error} ({DEVELOPMENT})", error.status) from None
        await self.load(server, weights, deadline)
        _, found = await server.offered("POST", "/reset_prefix_cache", seconds=deadline.left)
        if isinstance(found, dict) and found.get("success", True) is not True:
            raise FailedError("it did not empty its prefix cache")
        await self.verify(server, weights, deadline)
        await ask("POST", "/resume")
        await self.check_logprobs(server, deadline)

    async def load(self, server: Server, weights: Weights, deadline: Deadline) -> None:
        """Makes a server load weights: by the transfer from disk, or by reloading its model."""
        path = str(weights.exported.path) if weights.exported else ""
        if await self.transfers_from_disk(server, deadline):
            start = "/start_weight_update", {"is_checkpoint_format": True}
            try:
                await server.ask("POST", *start, seconds=deadline.left)
            except FailedError:  # an update that was cut short is still open
                await server.ask("POST", "/finish_weight_update", {}, seconds=deadline.left)
                await server.ask("POST", *start, seconds=deadline.left)
            body = {"update_info": {"path": path}}
            await server.ask("POST", "/update_weights", body, seconds=deadline.left)
            body = {"weight_version": weights.label}
            await server.ask("POST", "/finish_weight_update", body, seconds=deadline.left)
            return
        body = {"method": "reload_weights", "kwargs": {"weights_path": path}}
        offered, _ = await server.offered("POST", "/collective_rpc", body, seconds=deadline.left)
        if not offered:
            raise RefusedError(f"it offers no way to load weights ({DEVELOPMENT})", 404)
        body = {"new_version": weights.label}
        await server.offered("POST", "/update_weight_version", body, seconds=deadline.left)

    async def transfers_from_disk(self, server: Server, deadline: Deadline) -> bool:
        """Returns whether the server was started with a transfer of weights from disk."""
        if "disk" not in server.known:
            body = {"init_info": {}}
            try:
                server.known["disk"], _ = await server.offered(
                    "POST", "/init_weight_transfer_engine", body, seconds=deadline.left
                )
            except RefusedError:  # of a server with another kind of transfer
                server.known["disk"] = False
            except FailedError as error:  # or without any: vLLM 0.33 then answers with 500
                if "HTTP 5" not in str(error):
                    raise
                offered, _ = await server.offered("GET", "/server_info", seconds=deadline.left)
                if not offered:
                    raise
                server.known["disk"] = False
        return server.known["disk"]

    async def verify(self, server: Server, weights: Weights, deadline: Deadline) -> None:
        """Compares the version and the checksums that a server reports."""
        offered, found = await server.offered("GET", "/weight_info", seconds=deadline.left)
        if offered and (version := field(found, "weight_version")) != weights.label:
            raise LieError(f"it reports the weights {version!r} after an update to {weights.label}")
        await self.check_checksums(server, "/weight_checker", weights, deadline)

    async def check_logprobs(self, server: Server, deadline: Deadline) -> None:
        """Checks that log-probabilities are those of the distribution that tokens are drawn from.

        The only token that top_k=1 leaves then has the log-probability 0.
        """
        whole = not self.top_k and self.top_p == 1 and self.annealing is None
        if whole and self.temperature in (0, 1):
            return
        body = self.body(server, probe_ask()) | {"top_k": 1, "temperature": 1.0}
        found = await server.ask("POST", "/v1/completions", body, seconds=deadline.left)
        logprob = field(only_choice(found), "logprobs", "token_logprobs", 0)
        if not isinstance(logprob, float | int) or abs(logprob) > 1e-4:
            raise LieError(
                "its log-probabilities are not those of the distribution that it draws from: start "
                "it with --logprobs-mode processed_logprobs"
            )

    async def score(
        self, server: Server, tokens: Sequence[int], deadline: Deadline
    ) -> list[float | None]:
        body = self.body(server, probe_ask(tokens)) | {"prompt_logprobs": 0}
        found = await server.ask("POST", "/v1/completions", body, seconds=deadline.left)
        by_token = field(only_choice(found), "prompt_logprobs")
        if not isinstance(by_token, list) or len(by_token) != len(tokens):
            raise LieError("it did not return the log-probabilities of a prompt")
        pairs = zip(tokens[1:], by_token[1:], strict=True)
        return [number(field(of_token, str(token), "logprob")) for token, of_token in pairs]


def probe_ask(tokens: Sequence[int] = (0,)) -> Ask:
    """Returns a request for one token, of which only log-probabilities are read."""
    return Ask(
        tokens=tokens,
        seed=0,
        max_tokens=1,
        temperature=0.0,
        top_k=0,
        top_p=1.0,
        end_ids=(),
        vocabulary=0,
    )
