"""/v1/chat/completions: a conversation in, its next message out."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import model_validator

from rl4p.serving.body import Body
from rl4p.serving.choice import Choice
from rl4p.serving.fields import Ignored, Logprobs, Must, PositiveCount
from rl4p.serving.http_errors import HttpError
from rl4p.serving.http_request import HttpRequest
from rl4p.serving.messages import Conversation
from rl4p.serving.openai_request import OpenAIRequest
from rl4p.serving.openai_response import OpenAIResponse
from rl4p.serving.responses import EventStream, JsonResponse
from rl4p.serving.tool_calls import BEGIN, ToolCall, ToolCallParser


class ResponseFormat(Body, extra="ignore"):
    """The format of the message."""

    type: Annotated[Literal["text"], Must("text: other formats cannot be enforced")]


class ChatRequest(OpenAIRequest, Conversation):
    """The body of a request for the next message of a conversation."""

    max_tokens: PositiveCount | None = None
    max_completion_tokens: PositiveCount | None = None
    logprobs: bool = False
    top_logprobs: Logprobs | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: Ignored = None
    verbosity: Ignored = None
    modalities: Ignored = None

    @model_validator(mode="after")
    def check_logprobs(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise HttpError("top_logprobs needs logprobs=true.", param="top_logprobs")
        return self


async def chat_completions(http: HttpRequest) -> JsonResponse | EventStream:
    """Responds to a request for the next message of a conversation."""
    server, request = http.server, await http.body(ChatRequest)
    server.check_model(request.model)
    server.check_room(request.n)
    prompt = await request.encode(server)
    room = max(server.positions - len(prompt), 1)
    # A tool call may begin with a special token, which the text then has to have.
    calls_are_special = BEGIN in server.policy.tokenizer.all_special_tokens
    options = request.options(
        server,
        request.max_completion_tokens or request.max_tokens or room,
        alternatives=(request.top_logprobs or 0) if request.logprobs else None,
        skip_special=request.skip_special_tokens and not (request.has_tools and calls_are_special),
    )
    kind = "chat.completion.chunk" if request.stream else "chat.completion"
    response = ChatResponse(server, request, [prompt], options, kind=kind, prefix="chatcmpl")
    return await response.generate(http, "messages")


class ChatResponse(OpenAIResponse):
    """The response with messages."""

    request: ChatRequest

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        tools, n = self.request.has_tools, self.request.n
        self.parsers = [ToolCallParser() if tools else None for _ in range(n)]
        self.sent = [0] * n  # the number of tool calls of each choice in former chunks

    def body(self, choices: Sequence[Choice]) -> dict[str, Any]:
        fields = []
        for index, choice in enumerate(choices):
            content, calls = self.divided(index, choice.text(), ended=True)
            message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
            if calls:
                message["content"] = content or None
                message["tool_calls"] = [call.body() for call in calls]
            fields.append({"message": message} | self.choice(index, choice, 0))
        return self.head | {"choices": fields, "usage": self.usage(choices)} | self.prompt(0)

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
            first = self.sent[index]
            self.sent[index] += len(calls)
            delta["tool_calls"] = [
                {"index": number} | call.body() for number, call in enumerate(calls, first)
            ]
        return {"delta": delta} | self.choice(index, choice, start)

    def divided(self, index: int, text: str, *, ended: bool) -> tuple[str, list[ToolCall]]:
        """Returns the content and the tool calls of a text."""
        parser = self.parsers[index]
        if parser is None:
            return text, []
        content, calls = parser.feed(text)
        if ended:
            more, last = parser.flush()
            content, calls = content + more, calls + last
        return content, calls

    def choice(self, index: int, choice: Choice, start: int) -> dict[str, Any]:
        fields, parser = super().choice(index, choice, start), self.parsers[index]
        if choice.finish == "stop" and parser is not None and parser.called:
            fields["finish_reason"] = "tool_calls"
        return fields

    def logprobs(self, index: int, choice: Choice, start: int) -> dict[str, Any]:
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
