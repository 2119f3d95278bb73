"""SGLang's endpoints: generation, weights and memory."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import model_validator

from rl4p.base.errors import InputError, RunError
from rl4p.engine.serving.active_request import (
    ActiveRequest,
    Choice,
    CompletionOptions,
    empty_choices,
)
from rl4p.engine.serving.app import HttpRequest, ServedModel, new_id, or_null, seeds_of
from rl4p.engine.serving.body import (
    DONE,
    Body,
    Count,
    EventStream,
    HttpError,
    InputIds,
    JsonResponse,
    Logprobs,
    LogprobStart,
    Name,
    Path,
    RequestIds,
    Seed,
    Texts,
    Version,
    event,
    shortened,
)
from rl4p.engine.serving.completions import SamplingFields
from rl4p.tools.serving.weight_updates import (
    CheckWeights,
    OwnerQuery,
    WeightUpdates,
    checksum_of,
)

DEFAULT_TOKENS = 128  # SGLang's default
REPEATED = 64  # a stream has each token in about so many events


class SamplingParams(SamplingFields):
    """The object `sampling_params`."""

    IGNORED = ("stream_interval",)
    OFF = (*SamplingFields.OFF, "json_schema", "regex", "ebnf", "structural_tag", "custom_params")
    OFF += ("stop_regex",)

    sampling_seed: Seed | None = None
    max_new_tokens: Count | None = None
    min_new_tokens: Count = 0
    no_stop_trim: bool = False


class GenerateRequest(Body):
    """The body of a request for one or several prompts."""

    IGNORED = ("background", "log_metrics", "modalities", "priority", "session_params")
    OFF = ("token_ids_logprob", "lora_path", "return_hidden_states", "return_routed_experts")
    OFF += ("image_data", "audio_data", "video_data", "input_embeds", "custom_logit_processor")

    text: Texts | None = None
    input_ids: InputIds | None = None
    sampling_params: SamplingParams = SamplingParams()
    rid: RequestIds | None = None
    stream: bool = False
    return_logprob: bool = False
    logprob_start_len: LogprobStart = -1
    top_logprobs_num: Logprobs = 0
    return_text_in_logprobs: bool = False

    @model_validator(mode="after")
    def check_together(self) -> Self:
        if (self.text is None) == (self.input_ids is None):
            raise HttpError("Write either text or input_ids.", param="input_ids")
        if self.stream and self.scores_prompts:
            raise HttpError("logprob_start_len and stream do not go together.", param="stream")
        if isinstance(self.rid, list) and len(self.rid) != len(self.prompts):
            raise HttpError("rid must be a string, or one for each prompt.", param="rid")
        return self

    @property
    def scores_prompts(self) -> bool:
        """Whether the response has log-probabilities of the prompts."""
        return self.return_logprob and self.logprob_start_len >= 0

    @property
    def is_batch(self) -> bool:
        """Whether the request has a list of prompts, and not one prompt."""
        if self.input_ids is None:
            return isinstance(self.text, list)
        return bool(self.input_ids) and isinstance(self.input_ids[0], list)

    @property
    def prompts(self) -> Sequence[Any]:
        """The prompts, also if there is only one."""
        prompts = self.text if self.input_ids is None else self.input_ids
        return prompts if self.is_batch else [prompts]  # pyright: ignore[reportReturnType]


async def generate(http: HttpRequest) -> JsonResponse | EventStream:
    """Responds to a request for one or several prompts."""
    server, request = http.server, await http.body(GenerateRequest)
    params = request.sampling_params
    count = len(request.prompts) * params.n
    server.check_room(count)
    prompts = [
        await server.encode(prompt, "text") if isinstance(prompt, str) else prompt
        for prompt in request.prompts
    ]
    room, max_tokens = server.positions - max(map(len, prompts)), params.max_new_tokens
    options = params.options(
        server,
        "sampling_params.min_new_tokens",
        min_tokens=params.min_new_tokens,
        max_tokens=max(1, min(DEFAULT_TOKENS, room)) if max_tokens is None else max_tokens,
        alternatives=request.top_logprobs_num if request.return_logprob else None,
        keep_stop=params.no_stop_trim,
    )
    for prompt in prompts:
        server.check_prompt(prompt, options.max_tokens, "input_ids")
    response = GenerateResponse(server, request, prompts, options)
    drawn = params.n if options.max_tokens else 0
    scored = request.scores_prompts
    server.check_size(options, prompts, params.n, scored=scored, shown=scored)
    seeds = seeds_of(params.sampling_seed, len(prompts), drawn)
    active = server.start(
        options, prompts, seeds, stream=request.stream, scored=scored, unsent=http.unsent
    )
    server.rids |= dict.fromkeys(response.rids, active)
    if request.stream and drawn:
        return EventStream(response.stream(http, active))
    try:
        async with http.watched(active):
            choices, response.scores = await active.finished(), active.scores
    finally:
        response.forget(active)
    empty = empty_choices(len(prompts) * (params.n - drawn), server.detokenizer, options)
    objects = [response.choice(index, each) for index, each in enumerate([*choices, *empty])]
    return JsonResponse(objects if response.is_list else objects[0])


class GenerateResponse:
    """The response to one request: an object, or a list of objects for several."""

    def __init__(
        self,
        server: ServedModel,
        request: GenerateRequest,
        prompts: Sequence[Sequence[int]],
        options: CompletionOptions,
    ) -> None:
        self.server, self.request, self.prompts, self.options = server, request, prompts, options
        self.n = request.sampling_params.n
        self.sent: dict[int, int] = {}  # the number of tokens in the last event of each choice
        self.scores: list[list[float]] = []
        self.is_list = request.is_batch or self.n > 1
        rids = request.rid or [new_id() for _ in prompts]
        self.rids = rids if isinstance(rids, list) else [rids] * len(prompts)

    async def stream(self, http: HttpRequest, active: ActiveRequest) -> AsyncIterator[bytes]:
        """Yields the events of a stream; each has the whole text so far."""
        try:
            async with http.watched(active):
                async for changed in active.changes():
                    if content := b"".join(self.event(*each) for each in changed):
                        yield content
                yield DONE
        finally:
            self.forget(active)

    def event(self, index: int, choice: Choice) -> bytes:
        """Returns an event, or nothing if too few tokens are new for a repetition of all."""
        sent, count = self.sent.get(index, 0), len(choice.tokens)
        if choice.finish is None and count < sent + sent // REPEATED:
            return b""
        self.sent[index] = count
        return event(self.choice(index, choice) | ({"index": index} if self.is_list else {}))

    def forget(self, active: ActiveRequest) -> None:
        """Forgets the ids of a request that has ended."""
        for rid in self.rids:
            if self.server.rids.get(rid) is active:
                del self.server.rids[rid]

    def choice(self, index: int, choice: Choice) -> dict[str, Any]:
        """Returns the object of one completion."""
        number, spans = index // self.n, choice.spans
        prompt = self.prompts[number]
        reasons = {
            "stop": {"matched": choice.matched},
            "length": {"length": len(choice.tokens)},
            "abort": {"message": "The server aborted the request."},
        }
        finish = choice.finish
        meta: dict[str, Any] = {
            "id": self.rids[number],
            "finish_reason": None if finish is None else {"type": finish} | reasons[finish],
            "prompt_tokens": len(prompt),
            "completion_tokens": len(choice.tokens),
            "cached_tokens": 0,
            "weight_version": spans[-1].version if spans else self.server.version,
            "weight_versions": choice.versions(),
        }
        if self.options.alternatives is not None:
            meta["output_token_logprobs"] = triples(choice.logprobs, choice.tokens)
            if self.options.alternatives:
                meta["output_top_logprobs"] = [
                    [[or_null(logprob), token, None] for token, logprob in each]
                    for each in choice.alternatives
                ]
            start = self.request.logprob_start_len
            scores = triples(self.scores[number], prompt)[start:] if self.scores else []
            meta["input_token_logprobs"] = scores
        return {"text": choice.text(), "output_ids": choice.tokens, "meta_info": meta}


def triples(logprobs: Sequence[float], tokens: Sequence[int]) -> list[list[Any]]:
    """Returns log-probabilities as SGLang writes them: with the token, and null for its text."""
    return [[or_null(x), token, None] for x, token in zip(logprobs, tokens, strict=True)]


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


class MemoryOccupation(Body):
    """The body of /release_memory_occupation and /resume_memory_occupation."""

    OFF = ("tags",)  # the memory is given back as a whole


class AbortRequest(Body):
    """The body of /abort_request."""

    IGNORED = ("abort_message",)

    rid: Name = ""
    abort_all: bool = False


@dataclass(frozen=True)
class SGLangControl:
    """The handlers of these endpoints."""

    updates: WeightUpdates

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
        counts = self.updates.server.scheduler.counts()
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
                "model_path": self.updates.server.source,
                "tokenizer_path": self.updates.server.policy.tokenizer.name_or_path
                or self.updates.server.source,
                "served_model_name": self.updates.server.name,
                "is_generation": True,
                "weight_version": self.updates.server.scheduler.version,
            }
        )

    async def rename(self, request: HttpRequest) -> JsonResponse:
        """Renames the weights; vLLM has an endpoint of the same name and fields."""
        body = await request.body(UpdateWeightVersion)
        if body.abort_all_requests:
            self.updates.server.scheduler.abort()
        try:
            await self.updates.rename(body.new_version)
        except InputError as error:
            raise HttpError(str(error), status=409) from None
        return JsonResponse({"success": True, "message": "", "new_version": body.new_version})

    async def check(self, request: HttpRequest) -> JsonResponse:
        algorithm = (await request.body(CheckWeights)).algorithm
        try:
            sums = await self.updates.checksums(algorithm)
        except InputError as error:
            return JsonResponse({"success": False, "message": str(error)}, 400)
        whole = checksum_of(sums)
        rank = {"rank": 0, "checksum": whole, "checksums": sums}
        answer = {"success": True, "message": "", "ranks": [rank], "checksums": sums}
        return JsonResponse(answer | {"per_engine_checksum": whole, "algorithm": algorithm})

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
            self.updates.server.scheduler.abort()
        elif active := self.updates.server.rids.get(body.rid):
            self.updates.server.scheduler.abort(active.submissions)
        return JsonResponse({"success": True})
