"""The endpoints of SGLang beside /generate: pauses, weights and versions."""

from collections.abc import Awaitable, Callable
from typing import Any

from rl4p.errors import InputError, RunError
from rl4p.serving.answers import Json
from rl4p.serving.refusals import RefusalError
from rl4p.serving.request import Request
from rl4p.serving.updates import Updates, checksum_of

MODES = ("abort", "retract", "in_place")  # the first is the default


class SGLangControl:
    """The handlers of these endpoints.

    Attributes:
      mode: that of the pause; None while there is none.
    """

    def __init__(self, updates: Updates) -> None:
        self.updates = updates
        self.served = updates.served
        self.mode: str | None = None

    def routes(self) -> dict[tuple[str, str], Callable[[Request], Awaitable[Any]]]:
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
        }

    async def pause(self, request: Request) -> Json:
        fields = request.fields()
        mode = fields.text("mode", MODES[0])
        if mode not in MODES:
            raise fields.wrong("mode", "one of " + ", ".join(MODES))
        fields.end()
        # in_place keeps the keys and values of running requests, also under new weights
        how = "abort" if mode == "abort" else "keep"
        try:
            await self.updates.pause(how, recompute=mode != "in_place")
        except (RunError, TimeoutError) as error:
            raise RefusalError(str(error), status=503) from None
        self.mode = mode
        return Json({"status": "ok", "message": "Generation paused."})

    async def go_on(self, request: Request) -> Json:
        self.updates.resume()
        self.mode = None
        return Json({"status": "ok", "message": "Generation continued."})

    async def update(self, request: Request) -> Json:
        fields = request.fields()
        path = fields.text("model_path")
        version = fields.text("weight_version")
        flush, keep = fields.flag("flush_cache", True), fields.flag("keep_pause", False)
        abort = fields.flag("abort_all_requests", False)
        fields.unsupported("load_format", "auto", "safetensors")
        fields.ignore("is_async", "torch_empty_cache", "token_step", "recapture_cuda_graph")
        fields.end()
        scheduler = self.served.scheduler
        own_pause = not scheduler.paused
        try:
            if self.mode == "in_place" and flush:
                raise InputError(
                    "flush_cache needs a pause of mode retract or abort: running requests keep "
                    "their cache."
                )
            if own_pause:
                await self.updates.pause("abort" if abort else "wait", recompute=True)
            elif abort:
                scheduler.abort()
            paused = self.waiting()
            await self.updates.replace(path, version)
        except (InputError, RunError, TimeoutError) as error:
            return Json({"success": False, "message": str(error), "num_paused_requests": 0}, 400)
        finally:
            if own_pause and not keep:
                self.updates.resume()
        message = f"The weights are those of {path}."
        return Json({"success": True, "message": message, "num_paused_requests": paused})

    def waiting(self) -> int:
        counts = self.served.scheduler.counts()
        return int(counts["running"] + counts["waiting"])

    async def flush(self, request: Request) -> Json:
        if self.mode == "in_place" or (self.waiting() and self.mode is None):
            raise RefusalError(
                "The cache is in use: wait for the running requests, or pause with mode abort or "
                "retract."
            )
        return Json({"success": True, "message": "Nothing is kept after a request."})

    async def info(self, request: Request) -> Json:
        return Json(
            {
                "model_path": self.served.source,
                "tokenizer_path": self.served.policy.tokenizer.name_or_path or self.served.source,
                "served_model_name": self.served.name,
                "is_generation": True,
                "weight_version": self.served.scheduler.version,
            }
        )

    async def rename(self, request: Request) -> Json:
        """Renames the weights; vLLM has an endpoint of the same name and fields."""
        fields = request.fields()
        version = fields.text("new_version")
        if not version:
            raise fields.wrong("new_version", "a string")
        if fields.flag("abort_all_requests", False):
            self.served.scheduler.abort()
        fields.end()
        self.updates.rename(version)
        return Json({"success": True, "message": "", "new_version": version})

    async def check(self, request: Request) -> Json:
        fields = request.fields()
        action = fields.text("action")
        if action != "checksum":
            raise fields.wrong("action", "checksum")
        fields.end()
        try:
            found = await self.updates.checksums()
        except InputError as error:
            return Json({"success": False, "message": str(error)}, 400)
        whole = checksum_of(found)
        rank = {"rank": 0, "checksum": whole, "checksums": found}
        answer = {"success": True, "message": "", "ranks": [rank], "checksums": found}
        return Json(answer | {"per_engine_checksum": whole})

    async def abort(self, request: Request) -> Json:
        fields = request.fields()
        rid, every = fields.text("rid", ""), fields.flag("abort_all", False)
        fields.ignore("abort_message")
        fields.end()
        if every:
            self.served.scheduler.abort()
        elif live := self.served.rids.get(rid):
            self.served.scheduler.abort([submission for _, submission, _ in live.submissions])
        return Json({"success": True})
