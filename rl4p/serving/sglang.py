"""/generate: SGLang's own endpoint, tokens or texts in, tokens and texts out."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from rl4p.serving.active_request import ActiveRequest
from rl4p.serving.choice import Choice, CompletionOptions
from rl4p.serving.completions import MOST_LOGPROBS
from rl4p.serving.fields import Fields, are_tokens
from rl4p.serving.http_errors import HttpError
from rl4p.serving.http_request import HttpRequest
from rl4p.serving.responses import DONE, EventStream, JsonResponse, event
from rl4p.serving.sampling_fields import MOST_STOPS, read_sampling
from rl4p.serving.server_state import ServerState, new_id, or_null, seeds_of

DEFAULT_TOKENS = 128  # SGLang's
OFF = ("lora_path", "return_hidden_states", "image_data", "audio_data", "video_data")
OFF += ("input_embeds", "custom_logit_processor", "return_routed_experts")
OFF_WHILE_SAMPLING = ("json_schema", "regex", "ebnf", "structural_tag", "custom_params")
OFF_WHILE_SAMPLING += ("stop_regex",)


async def generate(request: HttpRequest) -> JsonResponse | EventStream:
    """Answers a request for one or several prompts."""
    server, fields = request.server, request.fields()
    prompts, several = await read_inputs(fields, server)
    stream = fields.flag("stream", False)
    logprobs = fields.flag("return_logprob", False)
    start = fields.integer("logprob_start_len", -1, -1)
    top = fields.integer("top_logprobs_num", 0, 0, MOST_LOGPROBS)
    rids = read_rids(fields, len(prompts))
    given = fields.take("sampling_params", {})
    fields.flag("return_text_in_logprobs", False)
    fields.unsupported("token_ids_logprob", [])
    for name in OFF:
        fields.unsupported(name, False, [])
    fields.ignore("background", "log_metrics", "modalities", "priority", "session_params")
    fields.end()
    if stream and logprobs and start >= 0:
        raise HttpError("logprob_start_len and stream do not go together.", param="stream")

    options = Fields(given, "sampling_params.")
    n = options.integer("n", 1, 1, server.slots + server.waiting)
    seed = options.integer("sampling_seed", None, -(2**63), 2**63 - 1)
    room = server.positions - max(map(len, prompts))
    wanted = read_wanted(options, server, logprobs, top if logprobs else 0, room)
    for prompt in prompts:
        server.check_length(prompt, wanted.max_tokens, "input_ids")
    server.check_room(len(prompts) * n)
    scores = None
    if logprobs and start >= 0:
        scores = [await server.score(prompt) for prompt in prompts]
    shape = Shape(server, wanted, prompts, rids, n, start, several or n > 1)
    if wanted.max_tokens == 0:
        return JsonResponse(shape.without_completions(scores))
    active = server.start(wanted, prompts, seeds_of(seed, len(prompts), n), stream=stream)
    server.rids |= dict.fromkeys(rids, active)
    if stream:
        return EventStream(shape.stream(request, active))
    try:
        async with request.watched(active):
            return JsonResponse(shape.whole(await active.finished(), scores))
    finally:
        shape.forget(active)


async def read_inputs(fields: Fields, server: ServerState) -> tuple[list[list[int]], bool]:
    """Reads the prompts; returns them, and whether the request has a list of them."""
    text, tokens = fields.take("text"), fields.take("input_ids")
    if (text is None) == (tokens is None):
        raise HttpError("Write either text or input_ids.", param="input_ids")
    if text is not None:
        several = type(text) is list
        texts = text if several else [text]
        if not texts or not all(type(each) is str for each in texts):
            raise fields.wrong("text", "a string or a list of strings")
        return [await server.encode(fields.valid("text", each)) for each in texts], several
    several = type(tokens) is list and bool(tokens) and type(tokens[0]) is list
    prompts = tokens if several else [tokens]
    if not all(are_tokens(each, server.vocabulary) for each in prompts):
        raise fields.wrong(
            "input_ids",
            f"a list of token ids from 0 to {server.vocabulary - 1}, or a list of these",
        )
    return prompts, several


def read_rids(fields: Fields, count: int) -> list[str]:
    """Reads the names of the prompts, which abort_request takes."""
    value = fields.take("rid")
    if value is None:
        return [new_id() for _ in range(count)]
    rids = value if type(value) is list else [value] * count
    if len(rids) != count or not all(type(each) is str for each in rids):
        raise fields.wrong("rid", "a string, or one for each prompt")
    return rids


def read_wanted(
    options: Fields, server: ServerState, logprobs: bool, top: int, room: int
) -> CompletionOptions:
    """Reads `sampling_params`; `room` is how many positions the longest prompt leaves."""
    ignore = options.flag("ignore_eos", False)
    ends = options.tokens("stop_token_ids", server.vocabulary)
    wanted = CompletionOptions(
        sampling=read_sampling(options),
        max_tokens=options.integer("max_new_tokens", max(1, min(DEFAULT_TOKENS, room)), 0),
        end_ids=tuple(dict.fromkeys((() if ignore else server.policy.end_ids) + ends)),
        min_tokens=options.integer("min_new_tokens", 0, 0),
        stops=options.texts("stop", MOST_STOPS),
        keep_stop=options.flag("no_stop_trim", False),
        skip_special=options.flag("skip_special_tokens", True),
        logprobs=logprobs,
        alternatives=top,
    )
    options.unsupported("spaces_between_special_tokens", True)
    for name in OFF_WHILE_SAMPLING:
        options.unsupported(name, [], {})
    options.ignore("stream_interval")
    options.end()
    if wanted.min_tokens > wanted.max_tokens or (wanted.min_tokens and wanted.stops):
        raise options.wrong("min_new_tokens", "at most max_new_tokens, and 0 beside stop")
    return wanted


class Shape:
    """The shape of one request's answer: an object, or a list of objects for several."""

    def __init__(
        self,
        server: ServerState,
        wanted: CompletionOptions,
        prompts: Sequence[Sequence[int]],
        rids: Sequence[str],
        n: int,
        start: int,
        several: bool,
    ) -> None:
        self.server, self.wanted, self.prompts, self.rids = server, wanted, prompts, rids
        self.n, self.start, self.several = n, start, several

    def whole(self, completions: Sequence[Choice], scores: Any) -> Any:
        """Returns the answer with all completions."""
        found = [self.one(index, each, scores) for index, each in enumerate(completions)]
        return found if self.several else found[0]

    def without_completions(self, scores: Any) -> Any:
        """Returns the answer to a request for no tokens."""
        count = len(self.prompts) * self.n
        texts, wanted = self.server.detokenizer, self.wanted
        empty = [Choice(texts, wanted, stream=False) for _ in range(count)]
        for completion in empty:
            completion.finish = "length"
        return self.whole(empty, scores)

    async def stream(self, request: HttpRequest, active: ActiveRequest) -> AsyncIterator[bytes]:
        """Yields the events of a stream; each has the whole text so far."""
        try:
            async with request.watched(active):
                async for changed in active.changes():
                    yield b"".join(
                        event(self.one(index, completion, None) | self.place(index))
                        for index, completion in changed
                    )
                yield DONE
        finally:
            self.forget(active)

    def place(self, index: int) -> dict[str, int]:
        return {"index": index} if self.several else {}

    def forget(self, active: ActiveRequest) -> None:
        """Forgets the names of a request that has ended."""
        for rid in self.rids:
            if self.server.rids.get(rid) is active:
                del self.server.rids[rid]

    def one(self, index: int, completion: Choice, scores: Any) -> dict[str, Any]:
        """Returns the answer of one completion."""
        prompt = self.prompts[index // self.n]
        spans = completion.spans
        about: dict[str, Any] = {
            "id": self.rids[index // self.n],
            "finish_reason": self.finish_reason(completion),
            "prompt_tokens": len(prompt),
            "completion_tokens": len(completion.tokens),
            "cached_tokens": 0,
            "weight_version": spans[-1].version if spans else self.server.scheduler.version,
            "weight_versions": completion.versions(),
        }
        if self.wanted.logprobs:
            about["output_token_logprobs"] = [
                [or_null(logprob), token, None]
                for logprob, token in zip(completion.logprobs, completion.tokens, strict=True)
            ]
            if self.wanted.alternatives:
                about["output_top_logprobs"] = [
                    [[or_null(logprob), token, None] for token, logprob in each]
                    for each in completion.alternatives
                ]
            about["input_token_logprobs"] = []
            if scores is not None:
                pairs = list(zip(scores[index // self.n], prompt, strict=True))[self.start :]
                about["input_token_logprobs"] = [[or_null(x), token, None] for x, token in pairs]
        return {"text": completion.text(), "output_ids": completion.tokens, "meta_info": about}

    def finish_reason(self, completion: Choice) -> dict[str, Any] | None:
        if completion.finish is None:
            return None
        found: dict[str, Any] = {"type": completion.finish}
        if completion.finish == "stop":
            found["matched"] = completion.matched
        elif completion.finish == "length":
            found["length"] = len(completion.tokens)
        else:
            found["message"] = "The server aborted the request."
        return found
