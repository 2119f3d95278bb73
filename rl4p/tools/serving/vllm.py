"""The endpoints of vLLM's development mode: pauses, weights and versions; and /tokenize."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from rl4p.base.errors import InputError, RunError
from rl4p.engine.serving.app import HttpRequest
from rl4p.engine.serving.body import Body, HttpError, JsonResponse, Must, Name, Path
from rl4p.tools.serving.weight_updates import (
    CheckWeights,
    OwnerQuery,
    WeightUpdates,
    checksum_of,
)


class PauseQuery(OwnerQuery):
    """The query of /pause."""

    mode: Literal["abort", "wait", "keep"] = "abort"
    clear_cache: bool = True


class SleepQuery(Body):
    """The query of /sleep.

    Attributes:
      level: 1 keeps the weights on the host; 2 drops them, so that they must be loaded again.
    """

    level: Literal["1", "2"] = "1"


class InitWeightTransfer(Body):
    """The body of /init_weight_transfer_engine."""

    IGNORED = ("init_info",)


class StartWeightUpdate(Body):
    """The body of /start_weight_update."""

    is_checkpoint_format: Annotated[Literal[True], Must("true: weights are read from folders")] = (
        True
    )


class UpdateInfo(Body):
    """The folder of new weights."""

    path: Path


class UpdateWeights(Body):
    """The body of /update_weights."""

    update_info: UpdateInfo


class FinishWeightUpdate(Body):
    """The body of /finish_weight_update."""

    weight_version: Name | None = None


class TokenizeRequest(Body):
    """The body of /tokenize."""

    model: Name | None = None
    prompt: str
    add_special_tokens: bool = True


async def tokenize(request: HttpRequest) -> JsonResponse:
    """Responds with the tokens of a text."""
    server, body = request.server, await request.body(TokenizeRequest)
    server.check_model(body.model)
    tokens = await server.encode(body.prompt, "prompt", special=body.add_special_tokens)
    sizes = {"count": len(tokens), "max_model_len": server.positions}
    return JsonResponse({"tokens": tokens} | sizes)


@dataclass(frozen=True)
class VLLMControl:
    """The handlers of these endpoints."""

    updates: WeightUpdates

    def routes(self) -> dict[tuple[str, str], Callable[[HttpRequest], Awaitable[Any]]]:
        """Returns the handlers by method and path."""
        return {
            ("POST", "/pause"): self.pause,
            ("POST", "/resume"): self.resume,
            ("GET", "/is_paused"): self.is_paused,
            ("POST", "/sleep"): self.sleep,
            ("POST", "/wake_up"): self.wake,
            ("GET", "/is_sleeping"): self.is_sleeping,
            ("POST", "/init_weight_transfer_engine"): self.init,
            ("POST", "/start_weight_update"): self.start,
            ("POST", "/update_weights"): self.update,
            ("POST", "/finish_weight_update"): self.finish,
            ("GET", "/weight_info"): self.info,
            ("GET", "/weight_checker"): self.check,
            ("POST", "/weight_checker"): self.check,
            ("POST", "/reset_prefix_cache"): self.reset_prefix_cache,
        }

    async def pause(self, request: HttpRequest) -> JsonResponse:
        query = request.query(PauseQuery)
        await self.updates.pause(query.owner, query.mode, recompute=query.clear_cache)
        return JsonResponse({"status": "paused"})

    async def resume(self, request: HttpRequest) -> JsonResponse:
        self.updates.resume(request.query(OwnerQuery).owner)
        return JsonResponse({"status": "resumed"})

    async def is_paused(self, request: HttpRequest) -> JsonResponse:
        return JsonResponse({"is_paused": self.updates.scheduler.paused})

    async def sleep(self, request: HttpRequest) -> JsonResponse:
        await self.updates.sleep(keep=request.query(SleepQuery).level == "1")
        return JsonResponse({"status": "asleep"})

    async def wake(self, request: HttpRequest) -> JsonResponse:
        await self.updates.wake()
        return JsonResponse({"status": "awake"})

    async def is_sleeping(self, request: HttpRequest) -> JsonResponse:
        return JsonResponse({"is_sleeping": self.updates.sleeping is not None})

    async def init(self, request: HttpRequest) -> JsonResponse:
        await request.body(InitWeightTransfer)
        return JsonResponse(
            {"message": "Weights are read from folders: nothing has to be prepared."}
        )

    async def start(self, request: HttpRequest) -> JsonResponse:
        await request.body(StartWeightUpdate)
        await self.updates.begin(request.query(OwnerQuery).owner)
        return JsonResponse({"message": "Weight update started."})

    async def update(self, request: HttpRequest) -> JsonResponse:
        path = (await request.body(UpdateWeights)).update_info.path
        try:
            await self.updates.add(request.query(OwnerQuery).owner, path)
        except InputError as error:
            raise HttpError(str(error), param="update_info.path") from None
        except RunError as error:
            raise HttpError(str(error), status=500) from None
        return JsonResponse({"message": "Weights updated."})

    async def finish(self, request: HttpRequest) -> JsonResponse:
        body = await request.body(FinishWeightUpdate)
        owner = request.query(OwnerQuery).owner
        version = await self.updates.finish(owner, body.weight_version)
        return JsonResponse({"message": "Weight update finished.", "weight_version": version})

    async def info(self, request: HttpRequest) -> JsonResponse:
        return JsonResponse({"weight_version": self.updates.scheduler.version})

    async def check(self, request: HttpRequest) -> JsonResponse:
        body = await request.body(CheckWeights) if request.content else CheckWeights()
        algorithm = body.algorithm
        try:
            sums = await self.updates.checksums(algorithm)
        except InputError as error:
            raise HttpError(str(error), status=500) from None
        shard = {"rank": 0, "checksum": checksum_of(sums), "checksums": sums}
        version = self.updates.scheduler.version
        sent = {"weight_version": version, "checksums": sums, "shards": [shard]}
        return JsonResponse(sent | {"algorithm": algorithm})

    async def reset_prefix_cache(self, request: HttpRequest) -> JsonResponse:
        return JsonResponse({})  # nothing is kept after a request
