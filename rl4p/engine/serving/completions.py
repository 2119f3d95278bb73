"""/v1/completions: prompts in, texts or tokens out."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Annotated, Any, Literal

from rl4p.engine.serving import fields
from rl4p.engine.serving.choice import Choice
from rl4p.engine.serving.http_request import HttpRequest
from rl4p.engine.serving.openai_request import OpenAIRequest
from rl4p.engine.serving.openai_response import OpenAIResponse
from rl4p.engine.serving.responses import EventStream, JsonResponse
from rl4p.engine.serving.server_state import or_null

NO_ECHO = "false: prompt_logprobs=0 returns the log-probabilities of the prompt's tokens"


class CompletionRequest(OpenAIRequest):
    """The body of a request for completions."""

    OFF = (*OpenAIRequest.OFF, "suffix")

    prompt: fields.Prompt
    max_tokens: fields.Count = 16  # OpenAI's default
    logprobs: fields.Logprobs | None = None
    add_special_tokens: bool = True
    return_tokens_as_token_ids: bool = False
    echo: Annotated[Literal[False], fields.Must(NO_ECHO)] = False
    truncate_prompt_tokens: Annotated[Literal[-1], fields.Must("-1: prompts are not cut")] = -1

    @property
    def prompts(self) -> Sequence[str | list[int]]:
        """The prompts, also if there is only one."""
        one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return [self.prompt] if one else self.prompt  # pyright: ignore[reportReturnType]


async def completions(http: HttpRequest) -> JsonResponse | EventStream:
    """Responds to a request for completions."""
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
        """Returns the names of tokens in log-probabilities."""
        if self.request.return_tokens_as_token_ids:
            return [f"token_id:{token}" for token in tokens]
        singles = self.server.detokenizer.singles
        return [singles[token] for token in tokens]
