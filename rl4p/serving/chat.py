"""/v1/chat/completions: a conversation in, its next message out."""

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from rl4p.serving.active_request import ActiveRequest
from rl4p.serving.choice import Choice
from rl4p.serving.completions import MOST_LOGPROBS
from rl4p.serving.fields import Fields
from rl4p.serving.http_errors import HttpError
from rl4p.serving.http_request import HttpRequest
from rl4p.serving.messages import read_prompt
from rl4p.serving.responses import DONE, EventStream, JsonResponse, event
from rl4p.serving.sampling_fields import Common, read_common
from rl4p.serving.server_state import ServerState, new_id, or_null, seeds_of, usage
from rl4p.serving.tool_calls import BEGIN, ToolCall, ToolCallParser


async def chat_completions(request: HttpRequest) -> JsonResponse | EventStream:
    """Answers a request for the next message of a conversation."""
    server, fields = request.server, request.fields()
    old = fields.integer("max_tokens", None, 1)
    common = read_common(fields, server, "max_completion_tokens", old)
    prompt, tools = await read_prompt(fields, server)
    alternatives = read_logprobs(fields)
    read_format(fields)
    fields.ignore("reasoning_effort", "verbosity", "modalities")
    fields.end()

    room = server.positions - len(prompt)
    limit = max(room, 1) if common.max_tokens is None else common.max_tokens
    if limit == 0:
        raise HttpError("max_completion_tokens must be at least 1.", param="max_completion_tokens")
    server.check_length(prompt, limit, "messages")
    server.check_room(common.n)
    logprobs = alternatives is not None
    options: dict[str, Any] = {"alternatives": alternatives or 0, "logprobs": logprobs}
    if tools and BEGIN in server.policy.tokenizer.all_special_tokens:
        options["skip_special"] = False  # or the calls could not be seen
    scores = None
    if common.prompt_logprobs is not None:
        scores = await server.score(prompt)
    active = server.start(
        common.want(limit, **options),
        [prompt],
        seeds_of(common.seed, 1, common.n),
        stream=common.stream,
    )
    shape = Shape(server, common, prompt, logprobs, tools)
    if common.stream:
        return EventStream(shape.stream(request, active))
    async with request.watched(active):
        return JsonResponse(shape.whole(await active.finished(), scores))


def read_logprobs(fields: Fields) -> int | None:
    """Returns how many alternatives are reported with each token; None for no log-probabilities."""
    wanted = fields.flag("logprobs", False)
    top = fields.integer("top_logprobs", None, 0, MOST_LOGPROBS)
    if top is not None and not wanted:
        raise HttpError("top_logprobs needs logprobs=true.", param="top_logprobs")
    return (top or 0) if wanted else None


def read_format(fields: Fields) -> None:
    """Refuses every format of the answer but text."""
    value = fields.take("response_format")
    if value is not None and value != {"type": "text"}:
        raise HttpError(
            "response_format must be text: other formats cannot be enforced.",
            param="response_format",
        )


class Shape:
    """The shape of one request's answer."""

    def __init__(
        self,
        server: ServerState,
        common: Common,
        prompt: Sequence[int],
        logprobs: bool,
        tools: bool,
    ) -> None:
        self.server, self.common, self.prompt = server, common, prompt
        self.logprobs = logprobs
        self.calls = [ToolCallParser() if tools else None for _ in range(common.n)]
        self.numbers = [0] * common.n  # of the next call of each choice
        self.head = {
            "id": f"chatcmpl-{new_id()}",
            "object": "chat.completion.chunk" if common.stream else "chat.completion",
            "created": int(time.time()),
            "model": server.name,
        }

    def whole(
        self, completions: Sequence[Choice], scores: Sequence[float] | None
    ) -> dict[str, Any]:
        """Returns the answer with all messages."""
        choices = []
        for index, completion in enumerate(completions):
            content, calls = self.divided(index, completion.text(), ended=True)
            message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
            if calls:
                message["content"] = content or None
                message["tool_calls"] = [call.body() for call in calls]
            choices.append({"message": message} | self.choice(index, completion, 0))
        found = self.head | {"choices": choices, "usage": usage([self.prompt], completions)}
        if self.common.token_ids:
            found["prompt_token_ids"] = list(self.prompt)
        if scores is not None:
            found["prompt_logprobs"] = [None] + [
                {str(token): {"logprob": or_null(logprob)}}
                for token, logprob in zip(self.prompt[1:], scores[1:], strict=True)
            ]
        return found

    async def stream(self, request: HttpRequest, active: ActiveRequest) -> AsyncIterator[bytes]:
        """Yields the events of a stream; the first of each choice has its role."""
        async with request.watched(active):
            first = {"role": "assistant", "content": ""}
            nothing = {"logprobs": None, "finish_reason": None}
            yield b"".join(
                self.event({"index": index, "delta": first} | nothing)
                for index in range(self.common.n)
            )
            async for changed in active.changes():
                events = [self.changed(index, completion) for index, completion in changed]
                yield b"".join(events)
            if self.common.usage:
                numbers = usage([self.prompt], active.choices)
                yield event(self.head | {"choices": [], "usage": numbers})
            yield DONE

    def changed(self, index: int, completion: Choice) -> bytes:
        """Returns the event with what is new in a message."""
        text, start = completion.delta()
        content, calls = self.divided(index, text, ended=completion.finish is not None)
        delta: dict[str, Any] = {"content": content} if content else {}
        if calls:
            first = self.numbers[index]
            self.numbers[index] += len(calls)
            delta["tool_calls"] = [
                {"index": at} | call.body() for at, call in enumerate(calls, first)
            ]
        return self.event({"delta": delta} | self.choice(index, completion, start))

    def event(self, choice: dict[str, Any]) -> bytes:
        usage = {"usage": None} if self.common.usage else {}
        return event(self.head | {"choices": [choice]} | usage)

    def divided(self, index: int, text: str, *, ended: bool) -> tuple[str, list[ToolCall]]:
        """Returns the content and the tool calls of a text."""
        parser = self.calls[index]
        if parser is None:
            return text, []
        content, calls = parser.feed(text)
        if ended:
            more, last = parser.flush()
            content, calls = content + more, calls + last
        return content, calls

    def choice(self, index: int, completion: Choice, start: int) -> dict[str, Any]:
        """Returns what a choice has beside its message, from the token `start`."""
        parser, finish = self.calls[index], completion.finish
        if finish == "stop" and parser is not None and parser.called:
            finish = "tool_calls"
        own = completion.matched in self.server.policy.end_ids
        found: dict[str, Any] = {
            "index": index,
            "logprobs": self.of_tokens(completion, start) if self.logprobs else None,
            "finish_reason": finish,
            "stop_reason": None if own else completion.matched,
            "weight_versions": completion.versions(start),
        }
        if self.common.token_ids:
            found["token_ids"] = completion.tokens[start:]
        return found

    def of_tokens(self, completion: Choice, start: int) -> dict[str, Any]:
        """Returns the log-probabilities of the tokens from `start`, the end token included."""
        none: list[tuple[int, float]] = []
        content = []
        for at in range(start, len(completion.tokens)):
            found = self.token(completion.tokens[at], completion.logprobs[at])
            most = completion.alternatives[at] if completion.alternatives else none
            found["top_logprobs"] = [self.token(*each) for each in most]
            content.append(found)
        return {"content": content, "refusal": None}

    def token(self, token: int, logprob: float) -> dict[str, Any]:
        texts = self.server.detokenizer
        return {
            "token": texts.singles[token],
            # OpenAI's clients expect a number
            "logprob": max(logprob, -9999.0),
            "bytes": list(texts.bytes_of(token)),
        }
