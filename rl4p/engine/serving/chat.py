"""/v1/chat/completions: a conversation in, its next message out."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import model_validator

from rl4p.engine.serving import fields
from rl4p.engine.serving.body import Body
from rl4p.engine.serving.choice import Choice
from rl4p.engine.serving.http_errors import HttpError
from rl4p.engine.serving.http_request import HttpRequest
from rl4p.engine.serving.messages import Conversation
from rl4p.engine.serving.openai_request import OpenAIRequest
from rl4p.engine.serving.openai_response import OpenAIResponse
from rl4p.engine.serving.responses import EventStream, JsonResponse
from rl4p.engine.serving.tool_calls import MARKS, ToolCall, ToolCallParser


class ResponseFormat(Body, extra="ignore"):
    """The format of the message."""

    type: Annotated[Literal["text"], fields.Must("text: other formats cannot be enforced")]


class ChatRequest(OpenAIRequest, Conversation):
    """The body of a request for the next message of a conversation."""

    IGNORED = (*OpenAIRequest.IGNORED, "reasoning_effort", "verbosity", "modalities")

    max_tokens: fields.PositiveCount | None = None
    max_completion_tokens: fields.PositiveCount | None = None
    logprobs: bool = False
    top_logprobs: fields.Logprobs | None = None
    response_format: ResponseFormat | None = None

    @model_validator(mode="after")
    def check_logprobs(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise HttpError("top_logprobs needs logprobs=true.", param="top_logprobs")
        return self


async def chat_completions(http: HttpRequest) -> JsonResponse | EventStream:
    """Responds to a request for the next message of a conversation."""
    return await next_message(http, await http.body(ChatRequest))


async def next_message(http: HttpRequest, request: ChatRequest) -> JsonResponse | EventStream:
    """Responds to a request that has been read."""
    server = http.server
    server.check_model(request.model)
    server.check_room(request.n)
    prompt = await request.encode(server)
    max_tokens = request.max_completion_tokens or request.max_tokens or server.room(prompt)
    alternatives = (request.top_logprobs or 0) if request.logprobs else None
    options = request.completion_options(server, max_tokens, alternatives)
    if request.has_tools and set(MARKS) & set(server.policy.tokenizer.all_special_tokens):
        options = replace(options, skip_special=False)  # or the text would have no tool calls
    return await ChatResponse(server, request, [prompt], options).generate(http, "messages")


class ChatResponse(OpenAIResponse):
    """The response with messages."""

    PREFIX, KINDS = "chatcmpl", ("chat.completion", "chat.completion.chunk")
    request: ChatRequest

    @cached_property
    def parsers(self) -> list[ToolCallParser]:
        """A parser of tool calls for each choice; none without tools."""
        return [ToolCallParser() for _ in range(self.request.n * self.request.has_tools)]

    def body(self, choices: Sequence[Choice]) -> dict[str, Any]:
        bodies = []
        for index, choice in enumerate(choices):
            content, calls = self.divided(index, choice.text(), ended=True)
            message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
            if calls:
                message["content"] = content or None
                message["tool_calls"] = [call.body() for call in calls]
            self.server.answered(choice, message)
            bodies.append({"message": message} | self.choice(index, choice, 0))
        return self.head | {"choices": bodies, "usage": self.usage(choices)} | self.prompt(0)

    def first_chunks(self) -> bytes:
        """Returns a chunk with the role for each choice."""
        first = {"delta": {"role": "assistant", "content": ""}}
        nothing = {"logprobs": None, "finish_reason": None}
        return b"".join(
            self.chunk({"index": index} | first | nothing) for index in range(self.request.n)
        )

    def change(self, index: int, choice: Choice) -> dict[str, Any]:
        text, start = choice.delta()
        content, calls = self.divided(index, text, ended=choice.finish is not None)
        delta: dict[str, Any] = {"content": content} if content else {}
        if calls:
            first = self.parsers[index].count - len(calls)
            delta["tool_calls"] = [
                {"index": number} | call.body() for number, call in enumerate(calls, first)
            ]
        if choice.finish is not None:
            self.server.answered(choice, {"role": "assistant", "content": ""} | delta)
        return {"delta": delta} | self.choice(index, choice, start)

    def divided(self, index: int, text: str, *, ended: bool) -> tuple[str, list[ToolCall]]:
        """Returns the content and the tool calls of a text."""
        if not self.parsers:
            return text, []
        parser = self.parsers[index]
        content, calls = parser.feed(text)
        if ended:
            more, last = parser.flush()
            content, calls = content + more, calls + last
        return content, calls

    def choice(self, index: int, choice: Choice, start: int) -> dict[str, Any]:
        body = super().choice(index, choice, start)
        if choice.finish == "stop" and self.parsers and self.parsers[index].count:
            body["finish_reason"] = "tool_calls"
        return body

    def logprobs(self, choice: Choice, start: int) -> dict[str, Any]:
        content = []
        for at in range(start, len(choice.tokens)):
            most = choice.alternatives[at] if choice.alternatives else []
            content.append(
                self.token(choice.tokens[at], choice.logprobs[at])
                | {"top_logprobs": [self.token(*each) for each in most]}
            )
        return {"content": content, "refusal": None}

    def token(self, token: int, logprob: float) -> dict[str, Any]:
        detokenizer = self.server.detokenizer
        return {
            "token": detokenizer.singles[token],
            # OpenAI's clients expect a number
            "logprob": max(logprob, -9999.0),
            "bytes": list(detokenizer.bytes_of(token)),
        }
