"""/v1/completions: prompts in, texts or tokens out."""

import time
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import accumulate
from typing import Any

from rl4p.serving.active_request import ActiveRequest
from rl4p.serving.choice import Choice
from rl4p.serving.fields import Fields, are_tokens
from rl4p.serving.http_errors import HttpError
from rl4p.serving.http_request import HttpRequest
from rl4p.serving.responses import DONE, EventStream, JsonResponse, event
from rl4p.serving.sampling_fields import Common, read_common
from rl4p.serving.server_state import ServerState, new_id, or_null, seeds_of, usage

MOST_LOGPROBS = 20
DEFAULT_TOKENS = 16  # OpenAI's


async def completions(request: HttpRequest) -> JsonResponse | EventStream:
    """Answers a request for completions."""
    server, fields = request.server, request.fields()
    common = read_common(fields, server, "max_tokens", DEFAULT_TOKENS)
    prompts = await read_prompts(fields, server)
    logprobs = fields.integer("logprobs", None, 0, MOST_LOGPROBS)
    as_ids = fields.flag("return_tokens_as_token_ids", False)
    if fields.flag("echo", False):
        raise HttpError(
            "echo is not supported: write prompt_logprobs=0 for the log-probabilities of the "
            "prompt's tokens.",
            param="echo",
        )
    fields.unsupported("suffix", "")
    fields.unsupported("truncate_prompt_tokens", -1)
    fields.end()

    limit = common.max_tokens or 0
    wanted = common.want(limit, alternatives=logprobs or 0, logprobs=logprobs is not None)
    for prompt in prompts:
        server.check_length(prompt, limit, "prompt")
    server.check_room(len(prompts) * common.n)
    seeds = seeds_of(common.seed, len(prompts), common.n)
    shape = Shape(server, common, prompts, logprobs, as_ids)
    scores = None
    if common.prompt_logprobs is not None:
        scores = [await server.score(prompt) for prompt in prompts]
    if limit == 0:
        return JsonResponse(shape.without_completions(scores))
    active = server.start(wanted, prompts, seeds, stream=common.stream)
    if common.stream:
        return EventStream(shape.stream(request, active))
    async with request.watched(active):
        return JsonResponse(shape.whole(await active.finished(), scores))


async def read_prompts(fields: Fields, server: ServerState) -> list[list[int]]:
    """Reads one or several prompts, each a text or a list of token ids."""
    value: Any = fields.take("prompt")
    special = fields.flag("add_special_tokens", True)
    if value and are_tokens(value, server.vocabulary):
        return [value]
    value = [value] if type(value) is str else value
    if type(value) is not list or not value:
        raise fields.wrong("prompt", "a text, a list of token ids, or a list of these")
    prompts = []
    for each in value:
        if type(each) is str:
            prompts.append(await server.encode(fields.valid("prompt", each), special=special))
        elif are_tokens(each, server.vocabulary):
            prompts.append(each)
        else:
            kind = f"token ids from 0 to {server.vocabulary - 1}"
            raise fields.wrong("prompt", f"a text, a list of {kind}, or a list of these")
    return prompts


class Shape:
    """The shape of one request's answer."""

    def __init__(
        self,
        server: ServerState,
        common: Common,
        prompts: Sequence[Sequence[int]],
        logprobs: int | None,
        as_ids: bool,
    ) -> None:
        self.server, self.common, self.prompts = server, common, prompts
        self.logprobs, self.alternatives, self.as_ids = logprobs is not None, logprobs, as_ids
        self.offsets: dict[int, int] = {}
        self.head = {
            "id": f"cmpl-{new_id()}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": server.name,
        }

    def whole(
        self, completions: Sequence[Choice], scores: Sequence[Sequence[float]] | None
    ) -> dict[str, Any]:
        """Returns the answer with all completions."""
        choices = [
            self.choice(index, completion, completion.text(), 0, scores)
            for index, completion in enumerate(completions)
        ]
        return self.head | {"choices": choices, "usage": usage(self.prompts, completions)}

    def without_completions(self, scores: Sequence[Sequence[float]] | None) -> dict[str, Any]:
        """Returns the answer to a request for no tokens."""
        n = self.common.n
        empty = {"text": "", "finish_reason": "length", "stop_reason": None, "logprobs": None}
        choices = [
            {"index": index} | empty | self.of_prompt(index // n, scores) | {"weight_versions": []}
            for index in range(len(self.prompts) * n)
        ]
        return self.head | {"choices": choices, "usage": usage(self.prompts, [])}

    async def stream(self, request: HttpRequest, active: ActiveRequest) -> AsyncIterator[bytes]:
        """Yields the events of a stream."""
        async with request.watched(active):
            async for changed in active.changes():
                yield b"".join(map(self.event, *zip(*changed, strict=True)))
            if self.common.usage:
                numbers = usage(self.prompts, active.choices)
                yield event(self.head | {"choices": [], "usage": numbers})
            yield DONE

    def event(self, index: int, completion: Choice) -> bytes:
        """Returns the event with what is new in a completion."""
        text, start = completion.delta()
        choice = self.choice(index, completion, text, start, None)
        if start:
            choice.pop("prompt_token_ids", None)
        return event(
            self.head | {"choices": [choice]} | ({"usage": None} if self.common.usage else {})
        )

    def choice(
        self,
        index: int,
        completion: Choice,
        text: str,
        start: int,
        scores: Sequence[Sequence[float]] | None,
    ) -> dict[str, Any]:
        """Returns the tokens of a completion from `start`, which have a text."""
        found: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": None,
            "finish_reason": completion.finish,
            "stop_reason": self.stop_reason(completion),
            "weight_versions": completion.versions(start),
        }
        if self.logprobs:
            found["logprobs"] = self.of_tokens(index, completion, start)
        if self.common.token_ids:
            found["token_ids"] = completion.tokens[start:]
        return found | self.of_prompt(index // self.common.n, scores)

    def stop_reason(self, completion: Choice) -> int | str | None:
        """Returns the stop string, or the token of `stop_token_ids`, that ended a completion."""
        own = completion.matched in self.server.policy.end_ids
        return None if own else completion.matched

    def of_tokens(self, index: int, completion: Choice, start: int) -> dict[str, Any]:
        """Returns the log-probabilities of the tokens from `start`."""
        tokens = completion.tokens[start:]
        names = self.names(tokens)
        lengths, first = self.server.detokenizer.lengths, self.offsets.get(index, 0)
        *offsets, self.offsets[index] = accumulate([lengths[x] for x in tokens], initial=first)
        logprobs = [or_null(x) for x in completion.logprobs[start:]]
        top = None
        if self.alternatives:
            top = [
                {name: logprob}
                | dict(
                    zip(self.names(x[0] for x in most), (or_null(x[1]) for x in most), strict=True)
                )
                for name, logprob, most in zip(
                    names, logprobs, completion.alternatives[start:], strict=True
                )
            ]
        return {
            "tokens": names,
            "token_logprobs": logprobs,
            "top_logprobs": top,
            "text_offset": offsets,
        }

    def names(self, tokens: Iterable[int]) -> list[str]:
        """Returns how tokens are called in log-probabilities."""
        if self.as_ids:
            return [f"token_id:{token}" for token in tokens]
        singles = self.server.detokenizer.singles
        return [singles[token] for token in tokens]

    def of_prompt(self, prompt: int, scores: Sequence[Sequence[float]] | None) -> dict[str, Any]:
        """Returns the tokens of a prompt and their log-probabilities, if they are wanted."""
        tokens, found = self.prompts[prompt], {}
        if self.common.token_ids:
            found["prompt_token_ids"] = list(tokens)
        if scores is not None:
            texts = self.server.detokenizer
            found["prompt_logprobs"] = [None] + [
                {str(token): {"logprob": or_null(x), "decoded_token": texts.singles[token]}}
                for token, x in zip(tokens[1:], scores[prompt][1:], strict=True)
            ]
        return found
