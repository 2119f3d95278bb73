"""The endpoints of SGLang beside /generate: pauses, weights and versions."""

from collections.abc import Awaitable, Callable
from typing import Any, Literal

from rl4p.base.errors import InputError, RunError
from rl4p.engine.serving.body import Body
from rl4p.engine.serving.fields import Name, Path, Version
from rl4p.engine.serving.http_errors import HttpError, shortened
from rl4p.engine.serving.http_request import HttpRequest
from rl4p.engine.serving.responses import JsonResponse
from rl4p.tools.serving.weight_updates import OwnerQuery, WeightUpdates, checksum_of


class PauseGeneration(Body):
    """The body of /pause_generation."""

    mode: Literal["abort", "retract", "in_place"] = "abort"


class UpdateWeightsFromDisk(Body):
    """The body of /update_weights_from_disk."""

    IGNORED = ("is_async", "torch_empty_cache", "token_step", "recapture_cuda_graph")

    model_path: Path
    weight_version: Name | None = None
    flush_cache: bool = True
    keep_pause: bool = False
    abort_all_requests: bool = False
    load_format: Literal["auto", "safetensors"] = "auto"


class UpdateWeightVersion(Body):
    """The body of /update_weight_version."""

    new_version: Version
    abort_all_requests: bool = False


class CheckWeights(Body):
    """The body of /weights_checker."""

    action: Literal["checksum"]


class MemoryOccupation(Body):
    """The body of /release_memory_occupation and /resume_memory_occupation."""

    OFF = ("tags",)  # the memory is given back as a whole


class AbortRequest(Body):
    """The body of /abort_request."""

    IGNORED = ("abort_message",)

    rid: Name = ""
    abort_all: bool = False


class SGLangControl:
    """The handlers of these endpoints."""

    def __init__(self, updates: WeightUpdates) -> None:
        self.updates = updates
        self.server = updates.server

    def routes(self) -> dict[tuple[str, str], Callable[[HttpRequest], Awaitable[Any]]]:
        """Returns the handlers by method and path."""
        return {
            ("POST", "/pause_generation"): self.pause,
            ("POST", "/continue_generation"): self.go_on,
            ("POST", "/update_weights_from_disk"): self.update,
            ("GET", "/flush_cache"): self.flush,
            ("POST", "/flush_cache"): self.flush,
            ("GET", "/get_weight_version"): self.info,
            ("GET", "/model_info"): self.info,
            ("GET", "/get_model_info"): self.info,
            ("POST", "/update_weight_version"): self.rename,
            ("POST", "/weights_checker"): self.check,
            ("POST", "/abort_request"): self.abort,
            ("POST", "/release_memory_occupation"): self.sleep,
            ("POST", "/resume_memory_occupation"): self.wake,
        }

    async def pause(self, request: HttpRequest) -> JsonResponse:
        mode = (await request.body(PauseGeneration)).mode
        # in_place keeps the keys and values of running requests, also under new weights
        how = "abort" if mode == "abort" else "keep"
        owner = request.query(OwnerQuery).owner
        await self.updates.pause(owner, how, recompute=mode != "in_place")
        return JsonResponse({"status": "ok", "message": "Generation paused."})

    async def go_on(self, request: HttpRequest) -> JsonResponse:
        self.updates.resume(request.query(OwnerQuery).owner)
        return JsonResponse({"status": "ok", "message": "Generation continued."})

    async def update(self, request: HttpRequest) -> JsonResponse:
        body = await request.body(UpdateWeightsFromDisk)
        owner, updates = request.query(OwnerQuery).owner, self.updates
        try:
            async with updates.update(owner, abort=body.abort_all_requests, keeps=body.keep_pause):
                if body.flush_cache and not updates.recompute:
                    raise InputError(
                        "flush_cache needs a pause of mode retract or abort: running requests keep "
                        "their cache."
                    )
                paused = self.waiting()
                await updates.replace(body.model_path, body.weight_version)
        except (InputError, RunError) as error:
            return JsonResponse(
                {"success": False, "message": shortened(error), "num_paused_requests": 0}, 400
            )
        message = f"The weights are from {body.model_path}."
        return JsonResponse({"success": True, "message": message, "num_paused_requests": paused})

    def waiting(self) -> int:
        counts = self.server.scheduler.counts()
        return int(counts["running"] + counts["waiting"])

    async def flush(self, request: HttpRequest) -> JsonResponse:
        if not self.updates.recompute or (self.waiting() and not self.updates.pauses):
            raise HttpError(
                "The cache is in use: wait for the running requests, or pause with mode abort or "
                "retract."
            )
        return JsonResponse({"success": True, "message": "Nothing is kept after a request."})

    async def info(self, request: HttpRequest) -> JsonResponse:
        return JsonResponse(
            {
                "model_path": self.server.source,
                "tokenizer_path": self.server.policy.tokenizer.name_or_path or self.server.source,
                "served_model_name": self.server.name,
                "is_generation": True,
                "weight_version": self.server.scheduler.version,
            }
        )

    async def rename(self, request: HttpRequest) -> JsonResponse:
        """Renames the weights; vLLM has an endpoint of the same name and fields."""
        body = await request.body(UpdateWeightVersion)
        if body.abort_all_requests:
            self.server.scheduler.abort()
        try:
            await self.updates.rename(body.new_version)
        except InputError as error:
            raise HttpError(str(error), status=409) from None
        return JsonResponse({"success": True, "message": "", "new_version": body.new_version})

    async def check(self, request: HttpRequest) -> JsonResponse:
        await request.body(CheckWeights)
        try:
            sums = await self.updates.checksums()
        except InputError as error:
            return JsonResponse({"success": False, "message": str(error)}, 400)
        whole = checksum_of(sums)
        rank = {"rank": 0, "checksum": whole, "checksums": sums}
        answer = {"success": True, "message": "", "ranks": [rank], "checksums": sums}
        return JsonResponse(answer | {"per_engine_checksum": whole})

    async def sleep(self, request: HttpRequest) -> JsonResponse:
        await request.body(MemoryOccupation)
        await self.updates.sleep(keep=False)  # as SGLang, whose weights are then undefined
        return JsonResponse({})

    async def wake(self, request: HttpRequest) -> JsonResponse:
        await request.body(MemoryOccupation)
        await self.updates.wake()
        return JsonResponse({})

    async def abort(self, request: HttpRequest) -> JsonResponse:
        body = await request.body(AbortRequest)
        if body.abort_all:
            self.server.scheduler.abort()
        elif active := self.server.rids.get(body.rid):
            self.server.scheduler.abort([submission for _, submission, _ in active.submissions])
        return JsonResponse({"success": True})
