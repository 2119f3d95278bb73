"""Prompts in, texts or tokens out: OpenAI's /v1/completions, and vLLM's endpoint for tokens."""

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from rl4p.base.types import Sampling
from rl4p.engine.serving.active_request import (
    ActiveRequest,
    Choice,
    CompletionOptions,
    empty_choices,
)
from rl4p.engine.serving.app import HttpRequest, ServedModel, new_id, or_null, seeds_of
from rl4p.engine.serving.body import (
    DONE,
    AlwaysTrue,
    Body,
    Count,
    EventStream,
    HttpError,
    JsonResponse,
    Logprobs,
    MinP,
    Must,
    Name,
    One,
    PositiveCount,
    Presence,
    Prompt,
    PromptLogprobs,
    Repetition,
    Seed,
    Stops,
    StopTokens,
    Temperature,
    TokenIds,
    TopK,
    TopP,
    event,
    validate,
)

NO_ECHO = "false: prompt_logprobs=0 returns the log-probabilities of the prompt's tokens"

WITHOUT = "false: the tokens are sent as a whole"


class SamplingFields(Body):
    """How tokens are drawn and where a completion ends, the same in OpenAI's and SGLang's API."""

    OFF = ("frequency_penalty", "logit_bias", "use_beam_search")
    OFF += ("bad_words",)

    n: PositiveCount = 1
    temperature: Temperature = 1.0
    top_p: TopP = 1.0
    top_k: TopK = -1
    stop: Stops = ()
    stop_token_ids: StopTokens = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: AlwaysTrue = True
    min_p: MinP = 0.0
    repetition_penalty: Repetition = 1.0
    presence_penalty: Presence = 0.0
    length_penalty: One = 1

    def options(
        self,
        server: ServedModel,
        path: str,
        *,
        min_tokens: int,
        max_tokens: int,
        alternatives: int | None,
        keep_stop: bool,
    ) -> CompletionOptions:
        """Returns the options of each completion; `path` names the field `min_tokens`."""
        if min_tokens > max_tokens or (min_tokens and self.stop):
            most = 0 if self.stop else max_tokens
            reason = "beside stop" if self.stop else "the limit of new tokens"
            raise HttpError(f"{path} must be at most {most}, {reason}.", param=path)
        server.check_tokens(self.stop_token_ids, "stop_token_ids")
        own = () if self.ignore_eos else server.policy.end_ids
        return CompletionOptions(
            sampling=server.sampling_of(
                self,
                Sampling(
                    temperature=self.temperature,
                    top_k=max(self.top_k, 0),
                    top_p=self.top_p,
                    min_p=self.min_p,
                    repetition_penalty=self.repetition_penalty,
                    presence_penalty=self.presence_penalty,
                ),
            ),
            end_ids=tuple(dict.fromkeys((*own, *self.stop_token_ids))),
            stops=self.stop,
            skip_special=self.skip_special_tokens,
            keep_stop=keep_stop,
            min_tokens=min_tokens,
            max_tokens=max_tokens,
            alternatives=alternatives,
        )


class StreamOptions(Body):
    """What a stream has beside its choices."""

    IGNORED = ("include_obfuscation",)
    OFF = ("continuous_usage_stats",)

    include_usage: bool = False


class OpenAIRequest(SamplingFields):
    """The fields of a request beside its prompt, its length and its log-probabilities."""

    IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier", "priority")
    IGNORED += ("prompt_cache_key", "prompt_cache_retention", "request_id", "cache_salt")

    model: Name | None = None
    seed: Seed | None = None
    min_tokens: Count = 0
    include_stop_str_in_output: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    prompt_logprobs: PromptLogprobs | None = None
    return_token_ids: bool = False
    return_weight_versions: bool = True  # they are always returned
    best_of: PositiveCount | None = None

    @model_validator(mode="after")
    def check_together(self) -> Self:
        if self.stream and self.prompt_logprobs is not None:
            raise HttpError("prompt_logprobs and stream do not go together.", param="stream")
        if self.stream_options and not self.stream:
            raise HttpError("stream_options needs stream=true.", param="stream_options")
        if self.best_of not in (None, 1, self.n):
            raise HttpError("best_of is not supported: leave it out.", param="best_of")
        return self

    @property
    def usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def completion_options(
        self, server: ServedModel, max_tokens: int, alternatives: int | None
    ) -> CompletionOptions:
        return self.options(
            server,
            "min_tokens",
            min_tokens=self.min_tokens,
            max_tokens=max_tokens,
            alternatives=alternatives,
            keep_stop=self.include_stop_str_in_output,
        )


class OpenAIResponse(ABC):
    """A response with choices: one JSON object, or a stream of chunks.

    Args:
      prompts: the token ids of each prompt, with `request.n` choices for each.
      options: the options of each completion.

    Attributes:
      PREFIX: the first part of the id.
      KINDS: the types of the JSON object and of a chunk.
    """

    PREFIX: ClassVar[str]
    KINDS: ClassVar[tuple[str, str]]

    def __init__(
        self,
        server: ServedModel,
        request: OpenAIRequest,
        prompts: Sequence[Sequence[int]],
        options: CompletionOptions,
    ) -> None:
        self.server, self.request, self.prompts, self.options = server, request, prompts, options
        self.scores: list[list[float]] = []  # the log-probabilities of the prompts
        self.head = {
            "id": f"{self.PREFIX}-{new_id()}",
            "object": self.KINDS[request.stream],
            "created": int(time.time()),
            "model": server.name,
        }

    async def generate(self, http: HttpRequest, param: str) -> JsonResponse | EventStream:
        """Generates the choices; `param` is the name of the field with the prompts.

        Raises:
          HttpError: a prompt is too long, or too many completions wait.
        """
        server, request, options = self.server, self.request, self.options
        for prompt in self.prompts:
            server.check_prompt(prompt, options.max_tokens, param)
        drawn = request.n if options.max_tokens else 0
        scored = request.prompt_logprobs is not None
        shown = scored or request.return_token_ids
        server.check_size(options, self.prompts, request.n, scored=scored, shown=shown)
        seeds = seeds_of(request.seed, len(self.prompts), drawn)
        active = server.start(
            options, self.prompts, seeds, stream=request.stream, scored=scored, unsent=http.unsent
        )
        if request.stream and drawn:
            return EventStream(self.stream(http, active))
        async with http.watched(active):
            choices, self.scores = await active.finished(), active.scores
        empty = empty_choices(len(self.prompts) * (request.n - drawn), server.detokenizer, options)
        return JsonResponse(self.body([*choices, *empty]))

    @abstractmethod
    def body(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """Returns the object with all choices."""

    @abstractmethod
    def change(self, index: int, choice: Choice) -> dict[str, Any]:
        """Returns what a choice gained since the last chunk."""

    @abstractmethod
    def logprobs(self, choice: Choice, start: int) -> dict[str, Any]:
        """Returns the log-probabilities of the tokens from `start`."""

    def first_chunks(self) -> bytes:
        return b""

    async def stream(self, http: HttpRequest, active: ActiveRequest) -> AsyncIterator[bytes]:
        async with http.watched(active):
            if first := self.first_chunks():
                yield first
            async for changed in active.changes():
                yield b"".join(self.chunk(self.change(*each)) for each in changed)
            if self.request.usage:
                yield event(self.head | {"choices": [], "usage": self.usage(active.choices)})
            yield DONE

    def chunk(self, choice: dict[str, Any]) -> bytes:
        """Returns the event with one choice."""
        usage = {"usage": None} if self.request.usage else {}
        return event(self.head | {"choices": [choice]} | usage)

    def choice(self, index: int, choice: Choice, start: int) -> dict[str, Any]:
        """Returns the fields of a choice beside its text, for the tokens from `start`."""
        scored = self.options.alternatives is not None
        logprobs = self.logprobs(choice, start) if scored else None
        fields: dict[str, Any] = {
            "index": index,
            "logprobs": logprobs,
            "finish_reason": choice.finish,
            # a token of `stop_token_ids` or a stop string, but no end token of the model
            "stop_reason": (
                None if choice.matched in self.server.policy.end_ids else choice.matched
            ),
            "weight_versions": choice.versions(start),
        }
        if self.request.return_token_ids:
            fields["token_ids"] = choice.tokens[start:]
        return fields

    def prompt(self, index: int) -> dict[str, Any]:
        """Returns the token ids of a prompt and their log-probabilities, if requested."""
        tokens, fields = self.prompts[index], {}
        if self.request.return_token_ids:
            fields["prompt_token_ids"] = list(tokens)
        if self.scores:
            texts = self.server.detokenizer.singles
            fields["prompt_logprobs"] = [None] + [
                {str(token): {"logprob": or_null(logprob), "decoded_token": texts[token]}}
                for token, logprob in zip(tokens[1:], self.scores[index][1:], strict=True)
            ]
        return fields

    def usage(self, choices: Sequence[Choice]) -> dict[str, int]:
        read, drawn = sum(map(len, self.prompts)), sum(len(each.tokens) for each in choices)
        return {"prompt_tokens": read, "completion_tokens": drawn, "total_tokens": read + drawn}


class CompletionRequest(OpenAIRequest):
    """The body of a request for completions."""

    OFF = (*OpenAIRequest.OFF, "suffix")

    prompt: Prompt
    max_tokens: Count = 16  # OpenAI's default
    logprobs: Logprobs | None = None
    add_special_tokens: bool = True
    return_tokens_as_token_ids: bool = False
    echo: Annotated[Literal[False], Must(NO_ECHO)] = False
    truncate_prompt_tokens: Annotated[Literal[-1], Must("-1: prompts are not cut")] = -1

    @property
    def prompts(self) -> Sequence[str | list[int]]:
        one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return [self.prompt] if one else self.prompt  # pyright: ignore[reportReturnType]


async def completions(http: HttpRequest) -> JsonResponse | EventStream:
    return await complete(http, await http.body(CompletionRequest))


async def complete(http: HttpRequest, request: CompletionRequest) -> JsonResponse | EventStream:
    """Responds to a request that has been read."""
    server = http.server
    server.check_model(request.model)
    server.check_room(len(request.prompts) * request.n)
    prompts = [
        await server.encode(prompt, "prompt", special=request.add_special_tokens)
        if isinstance(prompt, str)
        else prompt
        for prompt in request.prompts
    ]
    options = request.completion_options(server, request.max_tokens, request.logprobs)
    return await CompletionResponse(server, request, prompts, options).generate(http, "prompt")


class CompletionResponse(OpenAIResponse):
    """The response with texts."""

    PREFIX, KINDS = "cmpl", ("text_completion", "text_completion")
    request: CompletionRequest

    def body(self, choices: Sequence[Choice]) -> dict[str, Any]:
        bodies = [
            {"text": choice.text()}
            | self.choice(index, choice, 0)
            | self.prompt(index // self.request.n)
            for index, choice in enumerate(choices)
        ]
        return self.head | {"choices": bodies, "usage": self.usage(choices)}

    def change(self, index: int, choice: Choice) -> dict[str, Any]:
        text, start = choice.delta()
        prompt = {} if start else self.prompt(index // self.request.n)
        return {"text": text} | self.choice(index, choice, start) | prompt

    def logprobs(self, choice: Choice, start: int) -> dict[str, Any]:
        tokens, names = choice.tokens[start:], self.names(choice.tokens[start:])
        lengths = [self.server.detokenizer.lengths[token] for token in tokens]
        *offsets, choice.offset = accumulate(lengths, initial=choice.offset)
        logprobs = [or_null(logprob) for logprob in choice.logprobs[start:]]
        top = None
        if self.options.alternatives:
            top = [
                {name: logprob}
                | dict(
                    zip(self.names(x[0] for x in most), (or_null(x[1]) for x in most), strict=True)
                )
                for name, logprob, most in zip(
                    names, logprobs, choice.alternatives[start:], strict=True
                )
            ]
        return {
            "tokens": names,
            "token_logprobs": logprobs,
            "top_logprobs": top,
            "text_offset": offsets,
        }

    def names(self, tokens: Iterable[int]) -> list[str]:
        if self.request.return_tokens_as_token_ids:
            return [f"token_id:{token}" for token in tokens]
        singles = self.server.detokenizer.singles
        return [singles[token] for token in tokens]


class GenerationRequest(Body):
    """The body of a request. `sampling_params` has fields of `/v1/completions`."""

    IGNORED = ("priority", "cache_salt")
    OFF = ("features", "kv_transfer_params")

    model: Name | None = None
    request_id: Name | None = None
    token_ids: TokenIds
    sampling_params: dict[str, Any] = Field(default_factory=dict)
    stream: Annotated[Literal[False], Must(WITHOUT)] = False


async def token_generation(http: HttpRequest) -> JsonResponse:
    """Responds to a request for tokens after tokens."""
    request = await http.body(GenerationRequest)
    own = {"model": request.model, "prompt": request.token_ids, "return_token_ids": True}
    own["logprobs"] = 0  # of the drawn tokens, whatever the request says
    values = {"max_tokens": http.server.room(request.token_ids)}
    given = {k: v for k, v in request.sampling_params.items() if k != "detokenize"}
    whole = validate(CompletionRequest, values | given | own, http.server.wishes)
    response = await complete(http, whole)
    assert isinstance(response, JsonResponse)
    choices = [
        {
            "index": choice["index"],
            "token_ids": choice["token_ids"],
            "finish_reason": choice["finish_reason"],
            "weight_versions": choice["weight_versions"],
            "logprobs": {
                "content": [
                    {"token": f"token_id:{token}", "logprob": logprob, "top_logprobs": []}
                    for token, logprob in zip(
                        choice["token_ids"], choice["logprobs"]["token_logprobs"], strict=True
                    )
                ]
            },
        }
        for choice in response.value["choices"]
    ]
    return JsonResponse(
        {
            "request_id": request.request_id or new_id(),
            "choices": choices,
            "usage": response.value["usage"],
        }
    )
